"""What holds for every verb: help with an example, 80 columns, plain text in pipes, one-line errors."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
import tempfile

import numpy as np
import pytest

import fedpaq
from command_line import fedpaq_main

COMMANDS = [
    (),
    ("run",),
    ("reproduce",),
    ("plan",),
    ("theory",),
    ("inspect",),
    ("doctor",),
    ("data",),
    ("data", "list"),
    ("data", "get"),
    ("data", "check"),
    ("bench",),
    ("bench", "codec"),
]
ids = " ".join
TO_COPY = ("data folder:", "cache:", "fedpaq run ")  # lines that are never broken
QUADRATIC = ("synthetic-quadratic", "-n", "4")
SHORT_RUN = ("run", *QUADRATIC, "-T", "10", "-r", "2")
QUICK = {
    "run": SHORT_RUN,
    "run with --bandwidth": (*SHORT_RUN, "--bandwidth", "1Mbit/s", "--no-compare"),
    "run mnist": ("run", "mnist-logistic", "-T", "10", "-r", "5", "-s", "3", "--bucket-size", "100"),
    "plan": ("plan", *QUADRATIC, "--target-loss", "40", "--bandwidth", "100kbit/s", "--no-compare"),
    "plan from theory": ("plan", *QUADRATIC, "--target-loss", "60", "--ratio", "100", "--from-theory"),
    "theory": ("theory", *QUADRATIC, "-r", "4", "-t", "2", "-T", "4000", "-s", "0"),
    "theory, measured": ("theory", *QUADRATIC, "-r", "4", "-t", "2", "-T", "40", "-s", "0", "--measure", "2"),
    "doctor": ("doctor",),
    "data list": ("data", "list"),
    "data check": ("data", "check"),
    "bench codec": ("bench", "codec", "-p", "785", "-p", "100000", "-s", "1", "--repeats", "1"),
}


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@functools.cache
def quick(verb, *more):
    """Run a verb once, in an empty folder that it leaves empty."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        ended = fedpaq_main(*QUICK[verb], *more)
        assert os.listdir() == []
    return ended


def test_every_verb_is_in_the_list_above():
    from fedpaq.cli import app, bench, data

    top = {command.name for command in app.registered_commands}
    below = {
        (group, command.name or command.callback.__name__)
        for group, sub in (("data", data.app), ("bench", bench.app))
        for command in sub.registered_commands
    }
    assert {words for words in COMMANDS if len(words) == 2} == below
    assert {words[0] for words in COMMANDS if words} == top | {"data", "bench"}


@pytest.mark.parametrize("words", COMMANDS, ids=ids)
def test_help_has_an_example_of_this_verb_and_fits_80_columns(words):
    ended = fedpaq_main(*words, "--help")
    assert ended.code == 0 and ended.err == ""
    assert f"Example: {' '.join(('fedpaq', *words))}" in ended.out
    assert ended.width <= 80 and "\x1b" not in ended.out
    assert fedpaq_main(*words, "-h").out == ended.out


@pytest.mark.parametrize("words", COMMANDS[1:], ids=ids)
def test_every_option_has_a_word_of_help(words):
    ended = fedpaq_main(*words, "--help", columns=200)
    rows = [line.strip("│ ") for line in ended.out.splitlines() if re.match(r"│ [* ] +--", line)]
    for row in rows:
        words_after = re.sub(r"^--\S+( +-\S+)*( +[A-Z<\[]\S*)?", "", row.lstrip("* "))
        assert re.search(r"[a-z]{3}", words_after), row


@pytest.mark.parametrize("verb", QUICK)
def test_a_table_fits_80_columns_and_has_no_colours_in_a_pipe(verb):
    ended = quick(verb)
    assert ended.code == 0 and ended.told == []
    text = "\n".join(line for line in ended.out.splitlines() if not line.startswith(TO_COPY))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in ended.out and "[/" not in ended.out and "[bold" not in ended.out
    assert "…" not in ended.out  # nothing is cut off


@pytest.mark.parametrize("verb", QUICK)
def test_json_is_all_there_is_on_standard_output(verb):
    ended = quick(verb, "--json")
    assert ended.code == 0 and ended.told == []
    assert json.loads(ended.out, parse_constant=pytest.fail) is not None  # neither NaN nor Infinity


FROM_THEORY = ("plan", *QUADRATIC, "--target-loss", "60", "--ratio", "1", "--from-theory")
REFUSED = {
    ("frobnicate",): "No such command 'frobnicate'",
    ("run",): "; see fedpaq run --help",
    ("run", "mnist-logistic", "--speed", "9"): "--speed",
    ("run", "mnist-logistic", "--levels", "many"): "Invalid value for '--levels'",
    ("run", "mnist-logistic", "--bandwidth", "1Mbit/s", "--step-seconds", "0"): "step_seconds=0.0",
    ("run", "mnist-logistic", "--step-seconds", "nan"): "step_seconds=nan",
    ("run", "mnist-logistic", "--downlink-bandwidth", "fast"): "downlink_bandwidth='fast' is not a rate",
    ("run", "mnist-logistic", "--round-seconds", "-1"): "round_seconds=-1.0",
    ("plan", *QUADRATIC, "--target-loss", "4", "--ratio", "1", "--round-seconds", "nan"): "round_seconds=nan",
    ("run", "mnist-logistic", "--num-clients", "0"): "num_clients=0",
    ("run", "mnist-logistic", "--levels", "-1"): "levels=-1",
    ("run", "mnist-logistic", "--quantizer", "low-precison:1"): "did you mean 'low-precision'?",
    ("run", "mnist-logistic", "--quantizer", "none", "--levels", "1"): "'none' and levels=1: give one",
    ("run", "mnist-logistic", "--quantizer", "none", "--bucket-size", "9"): "bucket_size=9: give one",
    ("theory", *QUADRATIC, "--quantizer", "low-precision:0"): "levels=0",
    ("run", "mnist-logistic", "--bucket-size", "0"): "bucket_size=0",
    ("run", "mnist-logistic", "--accounting", "elais"): "did you mean 'elias'?",
    ("run", "mnist-logistic", "--executor", "dens"): "did you mean 'dense'?",
    ("run", "mnist-logistic", "--device", "tpu"): "device='tpu'",
    ("run", "mnist-logistic", "--output", "no/where.json"): "needs the folder 'no'; create it first",
    ("run", "mnist-logistic", "--checkpoint", "no/where"): "needs the folder 'no'; create it first",
    ("run", "mnist-logistic", "--log", "wandb:"): "names no project",
    ("run", "mnist-logistic", "--quantizer", "rotated"): "needs its settings; write rotated:BITS",
    ("theory", "synthetic-quadratic", "--measure", "2", "--plot", "no/where.png"): "needs the folder 'no'",
    ("theory", "synthetic-quadratic", "-n", "4", "-r", "5"): "clients_per_round=5 exceeds num_clients=4",
    ("run", "mnist-logistic", "--checkpoint", "c", "--checkpoint-every", "0"): "every=0",
    ("run", "mnist-logistic", "--checkpoint-every", "9"): "checkpoint_every=9 has no effect without checkpoint; add",
    ("run", "mnist-logistic", "--resume"): "add --checkpoint",
    ("run", "mnist-logistic", "--bandwidth", "1Mbit/s", "--ratio", "9"): "ratio=9.0: give exactly one",
    ("run", "mnist-logistic", "--levels", "0", "--bucket-size", "9"): "bucket_size=9 has no effect with levels=0",
    ("run", "mnist-logistic", "--slow-share", "0.1"): "slow_share=0.1 has no effect without slow_factor",
    ("plan", *QUADRATIC, "--target-loss", "4", "--ratio", "1", "--slow-factor", "9"): "add --slow-share, or leave it",
    ("plan", *QUADRATIC, "--target-loss", "4", "--ratio", "1", "--broadcast"): "add --downlink-bandwidth",
    ("run", "mnist-logistic", "--log", "rounds.txt"): "log='rounds.txt' has an unknown form",
    ("reproduce", "mnist", "--output", "/dev/null"): "output='/dev/null' is not a folder; name one, new or from an",
    ("reproduce", "mnits"): "did you mean 'mnist'",
    ("reproduce", "mnist", "--downlink-bandwidth", "fast"): "downlink_bandwidth='fast' is not a rate",
    ("reproduce", "mnist", "--step-seconds", "9"): "step_seconds=9.0 has no effect without a price; add",
    ("reproduce", "mnist", "--round-seconds", "-1"): "round_seconds=-1",
    ("plan", "synthetic-quadratic"): "Missing option '--target-loss'",
    ("plan", *QUADRATIC, "--target-loss", "4", "--bandwidth", "1kbit/s", "-B", "0"): "batch_size=0",
    ("plan", *QUADRATIC, "--target-loss", "nan", "--ratio", "1"): "target_loss=nan",
    ("plan", *QUADRATIC, "--target-loss", "40", "--ratio", "1", "--max-steps", "0"): "max_steps=0",
    ("plan", *QUADRATIC, "--target-loss", "40", "--ratio", "1", "--plot", "map.xyz"): "choose FILE.png, FILE.svg",
    ("plan", *QUADRATIC, "--target-loss", "40", "--ratio", "1", "--plot", "a.png", "--from-theory"): "leave out",
    ("plan", *QUADRATIC, "--target-loss", "60", "--ratio", "1", "--from-theory", "--max-clients", "0"): "clients=0",
    ("plan", *QUADRATIC, "--target-loss", "60", "--ratio", "1", "--from-theory", "--max-clients", "5"): "1..4",
    (*FROM_THEORY, "--no-compare"): "compare=False has no effect with --from-theory; leave it out",
    (*FROM_THEORY, "--max-steps", "9"): "max_steps=9 has no effect with --from-theory",
    (*FROM_THEORY, "--confidence", "0.9"): "confidence=0.9 has no effect with --from-theory",
    (*FROM_THEORY, "--downlink", "dense"): "('dense',) has no effect with --from-theory",
    ("theory", *QUADRATIC, "-t", "0"): "local_steps=0",
    ("theory", *QUADRATIC, "-t", "2", "-T", "7"): "total_steps=7 is not a multiple of local_steps=2",
    ("theory", *QUADRATIC, "--measure", "2", "--plot", "bound"): "plot='bound' is not a picture; choose",
    ("theory", *QUADRATIC, "--regularization", "-1"): "regularization=-1",
    ("inspect", "nothing.fpq"): "nothing.fpq: No such file or directory",
    ("inspect", "."): "is a directory",
    ("data", "check", "mnits"): "did you mean 'mnist'",
    ("data", "list", "--data-dir", "nowhere"): "data_dir='nowhere' is not a folder",
    ("bench", "codec", "-p", "0"): "Invalid value for '--dimension'",
    ("bench", "codec", "-p", "1000000000000", "--repeats", "1"): "Unable to allocate",
}


@pytest.mark.parametrize("words", REFUSED, ids=ids)
def test_an_error_is_one_line_and_code_2_and_leaves_nothing_behind(words, empty):
    ended = fedpaq_main(*words)
    assert ended.code == 2 and ended.out == ""
    (line,) = ended.told
    assert line.startswith("fedpaq: error: ") and REFUSED[words] in line
    assert list(empty.rglob("*")) == []


@pytest.mark.parametrize("words", [(), ("data",), ("bench",)], ids=["fedpaq", "data", "bench"])
def test_a_group_without_a_verb_shows_its_help_and_no_complaint(words):
    ended = fedpaq_main(*words)
    assert ended.code == 2 and ended.err == ""
    assert ended.out.rstrip() == fedpaq_main(*words, "--help").out.rstrip()


def test_debug_raises_what_would_be_one_line():
    with pytest.raises(FileNotFoundError):
        fedpaq_main("--debug", "inspect", "nothing.fpq")
    assert fedpaq_main("inspect", "nothing.fpq").code == 2  # and is forgotten at the next call


def test_the_version_is_the_library_s():
    assert fedpaq_main("--version").out == f"fedpaq {fedpaq.__version__}\n"


def test_an_interrupt_outside_a_run_is_told_with_code_130(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["fedpaq.cli.doctor"], "examine", interrupted)
    ended = fedpaq_main("doctor")
    assert (ended.code, ended.out, ended.err) == (130, "", "fedpaq: interrupted\n")


@pytest.mark.parametrize(("said", "shown"), [((), ""), (("8 GiB",), " (8 GiB)")])
def test_memory_that_runs_out_is_called_so_even_where_python_says_nothing(monkeypatch, said, shown):
    def full(_):
        raise MemoryError(*said)

    monkeypatch.setattr(sys.modules["fedpaq.cli.doctor"], "examine", full)
    ended = fedpaq_main("doctor")
    assert (ended.code, ended.err) == (2, f"fedpaq: error: out of memory; choose smaller sizes{shown}\n")


def test_help_imports_neither_torch_nor_numba():
    code = (
        "import sys\nsys.argv = ['fedpaq', 'run', '--help']\nimport fedpaq.cli\n"
        "try:\n    fedpaq.cli.main()\nexcept SystemExit:\n    print(' '.join(sys.modules), file=sys.stderr)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numba", "matplotlib", "plotly"} & set(ended.stderr.split())


def test_the_table_of_a_run_holds_the_numbers_of_its_json():
    values = json.loads(quick("run mnist", "--json").out)
    table = quick("run mnist").out
    assert list(values) == ["FedPAQ", "FedAvg"]
    for found in values.values():
        assert f"{found['loss']:.4f}" in table and f"{found['accuracy']:.1%}" in table
        assert f"{found['seconds']:,.0f}" in table
        assert found["upload_bits"] == 8 * found["payload_bytes"]
        assert found["rounds"] == 2 and found["config"]["total_steps"] == 10
    smaller = values["FedAvg"]["payload_bytes"] / values["FedPAQ"]["payload_bytes"]
    faster = values["FedAvg"]["seconds"] / values["FedPAQ"]["seconds"]
    assert f"FedAvg uploads {smaller:.3g} times as many bytes and takes {faster:.3g} times as long." in table


def test_the_table_of_a_plan_holds_the_numbers_of_its_json():
    found = json.loads(quick("plan", "--json").out)
    pick = next(line for line in quick("plan").out.splitlines() if line.startswith("pick"))
    setting = found["pick"]["setting"]
    assert pick.split()[1:3] == [str(setting["local_steps"]), str(setting["clients_per_round"])]
    assert f"{found['pick']['step_size']:.3g}" in pick
    assert f"{1e3 * found['pick']['seconds']:.3g} ms" in pick


def test_guarantees_are_sorted_by_time_and_the_table_shows_the_first_five():
    found = json.loads(quick("plan from theory", "--json").out)
    seconds = [guarantee["seconds"] for guarantee in found]
    assert seconds == sorted(seconds)
    rows = [line for line in quick("plan from theory").out.splitlines() if re.match(r" +\d", line)]
    assert [row.split()[-1] for row in rows] == [f"{value:.3g}" for value in seconds[:5]]


def test_the_tables_of_theory_hold_the_numbers_of_its_json():
    found = json.loads(quick("theory, measured", "--json").out)
    table = quick("theory, measured").out
    for constant in filter(None, found["constants"].values()):
        assert f"{constant['value']:.4g}" in table and constant["source"] in table
    for theorem in ("theorem_1", "theorem_2"):
        for bound in found[theorem].values():
            shown = [value for value in bound.values() if isinstance(value, float)]
            assert all(f"{value:.4g}" in table for value in shown)
    assert f"{found['measured']['mean'][-1]:.4g}" in table


def test_the_table_of_a_benchmark_has_a_row_for_each_entry_of_its_json():
    found = json.loads(quick("bench codec", "--json").out)
    rows = quick("bench codec").out.splitlines()[3:]
    for entry, row in zip(found, rows, strict=True):
        assert row.split()[:3] == [f"{entry[name]:,}" for name in ("dimension", "levels", "payload_bytes")]
        assert entry["bits_per_coordinate"] == 8 * entry["payload_bytes"] / entry["dimension"]


def test_the_table_of_the_doctor_holds_every_finding_of_its_json():
    found = json.loads(quick("doctor", "--json").out)
    table = quick("doctor").out
    for section, values in found.items():
        assert section in table
        for name, value in values.items():
            assert re.search(rf"{re.escape(name)} +{re.escape(str(value))}\s", table), name


def test_the_doctor_says_where_a_dataset_is_incomplete_instead_of_failing(tmp_path):
    folder = tmp_path / "fashion-mnist"
    folder.mkdir()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(b"")
    ended = fedpaq_main("doctor", "--json", "--data-dir", tmp_path)
    assert ended.code == 0
    assert json.loads(ended.out)["data"]["fashion-mnist"] == "incomplete; see `fedpaq data check`"


def test_a_payload_s_table_holds_what_its_json_says(tmp_path):
    path = tmp_path / "update.fpq"
    update = np.random.default_rng(3).standard_normal(3000).astype(np.float32)
    message = fedpaq.LowPrecision(4, 1000).quantize(update, key=fedpaq.Key(seed=1))
    path.write_bytes(fedpaq.encode(message))
    found = json.loads(fedpaq_main("inspect", path, "--json").out)
    assert (found["norms"], found["bucket_size"], found["levels"]) == (3, 1000, 4)
    assert found["nonzeros"] == np.count_nonzero(message.signed_levels)
    assert found["largest_level"] == np.abs(message.signed_levels).max()
    assert found["fixed_width_bytes"] == (3000 * 4 + 3 * 32) / 8  # s = 4: 3 bits of level, one of sign
    table = fedpaq_main("inspect", path).out
    for name, value in found.items():
        text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else value
        assert re.search(rf"^{name.replace('_', ' ')} +{re.escape(text)} *$", table, re.MULTILINE), name
