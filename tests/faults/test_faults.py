"""Faults on purpose: kills, signals, full and read-only disks, two processes, clock jumps, a soak."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import fedpaq
from fedpaq.errors import CheckpointError
from fedpaq.storage import checkpoint
from fedpaq.storage.lock import hold
from small_problems import make_problem

HERE = Path(__file__).parent
SOURCE = Path(fedpaq.__file__).parent
ONE_THREAD = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # tests share the cores
ENVIRONMENT = {**os.environ, **ONE_THREAD, "PYTHONPATH": os.pathsep.join([str(SOURCE.parent), str(HERE.parent)])}


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=300, **options
    )


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_five_kills_at_random_instants_change_nothing():
    """The same script with a hundred kills is for the night; its record is in results/."""
    done = python(HERE / "kill_and_resume.py", "--kills", 5)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] == 5


def test_dying_at_any_line_of_a_save_leaves_a_whole_checkpoint_and_no_litter():
    done = python(HERE / "crash_points.py")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 40
    for point in found:
        assert point["whole"] and point["generation"] in (0, 1), point
        assert point["left"] == ["run.ckpt", "run.ckpt.previous"], point
    generations = [point["generation"] for point in found]
    assert generations == sorted(generations) and set(generations) == {0, 1}


def wait_for(condition, seconds=120.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.01)


def command(folder):
    options = ["--no-compare", "--total-steps", "750", "--evaluate-every", "0", "--resume"]
    files = ["--checkpoint", str(folder / "run.ckpt"), "--output", str(folder / "run.json")]
    return [sys.executable, "-m", "fedpaq", "run", "mnist-logistic", *options, *files]


def test_signals_end_the_command_with_130_or_143_and_a_valid_checkpoint(tmp_path, request):
    """SIGTERM, then SIGINT, then to the end: the result is that of a run left alone."""
    # A shell that starts the tests in the background has them, and what they start, ignore SIGINT.
    request.addfinalizer(partial(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path, rounds_before = tmp_path / "run.ckpt", 0

    def under_way():
        return path.exists() and checkpoint.load(path)[0]["rounds_done"] >= rounds_before + 10

    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        run = subprocess.Popen(command(tmp_path), env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        wait_for(under_way)
        run.send_signal(number)
        _, told = run.communicate(timeout=120)
        assert run.returncode == code and "continue with the same command and --resume" in told
        assert "Traceback" not in told
        assert names(tmp_path) == ["run.ckpt", "run.ckpt.previous"]
        rounds_before = checkpoint.load(path)[0]["rounds_done"]
        assert 0 < rounds_before < 150
    finished = subprocess.run(command(tmp_path), env=ENVIRONMENT, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0)
    config = fedpaq.FedPAQConfig(clients_per_round=25, local_steps=5, total_steps=750, step_size=0.5)
    whole = fedpaq.train(
        problem,
        config,
        quantizer=fedpaq.LowPrecision(levels=1),
        cost_model=fedpaq.CostModel.from_ratio(100.0),
        evaluate_every=0,
    )
    assert (tmp_path / "run.json").read_text() == whole.to_json()


FILL = """
import sys, numpy as np
from fedpaq.storage import checkpoint
path, k = sys.argv[1], 0
while True:
    checkpoint.save(path, {"k": k}, {"params": np.zeros(1000 * 2**k, np.uint8)})
    k += 1
"""


def check_after_a_full_disk(done, folder):
    assert done.returncode == 1
    assert "CheckpointError: checkpoint=" in done.stderr and "what was saved before is untouched" in done.stderr
    header, arrays = checkpoint.load(folder / "run.ckpt")
    assert arrays["params"].size == 1000 * 2 ** header["k"] and header["k"] >= 2
    assert names(folder) == ["run.ckpt", "run.ckpt.previous"]


def test_a_file_size_limit_is_told_and_costs_nothing_saved(tmp_path):
    """RLIMIT_FSIZE: the kernel refuses the write half-way, as a quota does."""
    import resource

    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))}
    done = python("-c", FILL, tmp_path / "run.ckpt", **limited)
    check_after_a_full_disk(done, tmp_path)
    assert "File too large" in done.stderr


def mounted(options, script, folder, *arguments):
    """Run Python where ``folder`` is a mount of its own, seen by this process tree only."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare to mount a file system")
    user = [] if os.geteuid() == 0 else ["--map-root-user"]
    mount = f'mount {options} "$0" && shift 0 && exec "$@"'
    inner = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(
        ["unshare", "--mount", *user, "sh", "-c", mount, str(folder), *inner],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"mounting is not allowed here: {done.stderr.splitlines()[0]}")
    return done


def test_a_full_disk_is_told_and_costs_nothing_saved(tmp_path):
    """A real file system of 256 kB that runs full; its content is copied out before it goes."""
    small, copy = tmp_path / "small", tmp_path / "copy"
    small.mkdir()
    script = (
        "import shutil, sys\n"
        f"sys.argv[1:] = [{str(small / 'run.ckpt')!r}]\n"
        f"try:\n    exec({FILL!r})\n"
        f"finally:\n    shutil.copytree({str(small)!r}, {str(copy)!r})\n"
    )
    done = mounted("-t tmpfs -o size=256k tmpfs", script, small)
    check_after_a_full_disk(done, copy)
    assert "No space left on device" in done.stderr


def test_a_read_only_folder_is_told_before_any_work(tmp_path):
    checkpoint.save(tmp_path / "run.ckpt", {"k": 0}, {})
    script = (
        "from fedpaq.storage import checkpoint\n"
        "from fedpaq.storage.lock import hold\n"
        f"path = {str(tmp_path / 'run.ckpt')!r}\n"
        "print(checkpoint.load(path)[0])\n"
        "for work in (lambda: checkpoint.save(path, {}, {}), lambda: hold(path).__enter__()):\n"
        "    try:\n        work()\n"
        "    except checkpoint.CheckpointError as error:\n        print(error)\n"
    )
    done = mounted(f'--bind -o ro "{tmp_path}"', script, tmp_path)
    assert done.stdout.count("Read-only file system") == 2, done.stderr
    assert "{'k': 0}" in done.stdout
    assert checkpoint.load(tmp_path / "run.ckpt")[0] == {"k": 0} and names(tmp_path) == ["run.ckpt"]


def test_two_processes_on_one_checkpoint_cannot_mix(tmp_path, logistic, config):
    path = tmp_path / "run.ckpt"
    holder = (
        "import sys\n"
        "from fedpaq.storage.lock import hold\n"
        "with hold(sys.argv[1]):\n    print('held', flush=True); input()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", holder, str(path)],
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout.readline() == "held\n"
    with pytest.raises(CheckpointError, match=f"in use by process {other.pid}; wait for it"):
        fedpaq.train(logistic, config, checkpoint=path)
    other.communicate("\n", timeout=60)
    assert fedpaq.train(logistic, config, checkpoint=path).final.round == config.num_rounds


def test_many_processes_racing_for_one_lock_hold_it_one_at_a_time(tmp_path):
    script = (
        "import os, sys, time\n"
        "from fedpaq.errors import CheckpointError\n"
        "from fedpaq.storage.lock import hold\n"
        "got = 0\n"
        "while got < 20:\n"
        "    try:\n"
        "        with hold(sys.argv[1]):\n"
        "            flag = os.open(sys.argv[1] + '.inside', os.O_CREAT | os.O_EXCL)\n"
        "            time.sleep(0.001); os.close(flag); os.unlink(sys.argv[1] + '.inside'); got += 1\n"
        "    except CheckpointError:\n        pass\n"
    )
    racers = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "run.ckpt")], env=ENVIRONMENT) for _ in range(4)
    ]
    assert [racer.wait(timeout=120) for racer in racers] == [0, 0, 0, 0]
    assert names(tmp_path) == []


def test_a_clock_that_jumps_changes_nothing(monkeypatch, tmp_path, logistic, config):
    calm = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1))
    jumps = random.Random(0)
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: jumps.uniform(-1e9, 1e10))
    wild = fedpaq.train(logistic, config, quantizer=fedpaq.LowPrecision(levels=1), checkpoint=tmp_path / "run.ckpt")
    assert wild.to_json() == calm.to_json()


@pytest.mark.parametrize(
    "path",
    [
        SOURCE / "algorithm.py",
        *(path for part in ("storage", "run", "server") for path in (SOURCE / part).glob("*.py")),
    ],
    ids=lambda path: path.stem,
)
def test_nothing_a_result_rests_on_reads_a_clock(path):
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & {"time", "datetime"}


def test_no_source_file_unpickles_or_evaluates():
    forbidden = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name for alias in node.names} & forbidden, path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in forbidden, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert ast.literal_eval(node.value) is False, path


def test_a_short_soak_keeps_memory_and_descriptors_flat():
    """The same script with 2,000 rounds is for the night; its record is in results/."""
    done = python(HERE / "soak.py", "--rounds", 300, "--first", 150)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_saved_history_is_whole_or_absent_under_a_file_size_limit(tmp_path):
    import resource

    history = fedpaq.train(
        make_problem("mlp"), fedpaq.FedPAQConfig(clients_per_round=2, local_steps=1, total_steps=2, step_size=0.1)
    )
    (tmp_path / "run.json").write_text("old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            history.save(tmp_path / "run.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "run.json").read_text() == "old" and names(tmp_path) == ["run.json"]


def test_the_lock_goes_with_the_run_even_when_it_fails(tmp_path, logistic, config):
    def fail(record, params):
        raise RuntimeError("as a caller's own code may")

    with pytest.raises(RuntimeError):
        fedpaq.train(logistic, config, checkpoint=tmp_path / "run.ckpt", callback=fail)
    with hold(tmp_path / "run.ckpt"):
        pass
    assert np.array_equal(
        fedpaq.train(logistic, config, checkpoint=tmp_path / "run.ckpt").params, fedpaq.train(logistic, config).params
    )
