PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP := --quiet --disable-pip-version-check

.PHONY: help demo test check bench docs deploy-demo screenshots clean
help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 22

$(READY): pyproject.toml constraints.txt
	@test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (about a minute and a half) ..."
	@$(BIN)/python -m pip install $(PIP) -c constraints.txt torch numba scipy
	@PYTHONPATH=src $(BIN)/python -m fedpaq.kernels.numba 2>/dev/null & \
	$(BIN)/python -m pip install $(PIP) -c constraints.txt -e '.[dev,flower]' && wait
	@touch $@

demo: $(READY)  ## the paper's first figure, run and judged, from the bundled data
	@$(BIN)/fedpaq reproduce mnist

test: $(READY)  ## every test
	@$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder -q

check: $(READY)  ## format, lint, types, audit of what is installed, tests with new random examples
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/audit.py
	@HYPOTHESIS_PROFILE=exploring $(MAKE) --no-print-directory test

bench: $(READY)  ## the benchmarks, one after another
	@for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; code=$$?; \
	if [ $$code = 77 ]; then echo "== $$script: SKIPPED"; elif [ $$code != 0 ]; then exit 1; fi; done

deploy-demo: $(READY)  ## a real Flower deployment on loopback: TLS, node authentication, four nodes
	@$(BIN)/python -m fedpaq.flower.trial examples/flower-mnist --supernodes 4 --tls --folder fedpaq-runs/deploy-demo

docs: $(READY)  ## build the documentation site into site/
	@$(BIN)/python -m pip install $(PIP) -c constraints.txt -e '.[docs]'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet && echo "open site/index.html"

screenshots: docs  ## look at the report and every page of the site in a browser; pictures of the report
	@$(BIN)/python scripts/screenshots.py

clean:  ## remove the environment and build products
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
