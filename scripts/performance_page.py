"""Write docs/performance.md from benchmarks/results/*.json: no figure on that page is typed by hand.

python scripts/performance_page.py
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
INTRODUCTION = """# Performance

Written by `scripts/performance_page.py` from `benchmarks/results/*.json`; each section names the script that
measured it. Every script asserts equal results before it times anything. Contenders alternate within one run,
and a figure is the median of its repeats. Machines differ between sections, so compare within a table, not
across tables.
"""

Results = dict[str, Any]


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    columns = list(header)
    lines = [columns, ["---", *["---:"] * (len(columns) - 1)], *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def aims(rows: Iterable[tuple[str, str, bool]]) -> str:
    """Return the table of what was aimed at; a miss is written as plainly as a success."""
    return table(("aim", "measured", "met"), ((aim, found, "yes" if met else "**no**") for aim, found, met in rows))


def digits(value: float) -> str:
    """Return a number with two digits, or as a whole number."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def seconds(value: float) -> str:
    """Return a duration with three digits and a unit that fits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= 0.9995 * scale:  # rounds to 1 of this unit, not to 1000 of the one below
            return f"{value / scale:.3g} {unit}" if value < 999.5 * scale else f"{value / scale:,.0f} {unit}"
    return f"{value / 1e-9:.3g} ns"


def size(value: float) -> str:
    """Return a number of bytes with three digits and a unit that fits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= 0.9995 * scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def machine(results: Results) -> str:
    """Return the line that says where a section was measured."""
    where = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items() if name != "fedpaq")
    gpu = results.get("imports", {}).get("gpu")
    device = f"{gpu}, host: " if gpu else ""
    return f"*{device}{where['processor']}, {where['cores']} cores; Python {where['python']}, {versions}.*"


def simulation(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/simulation.py."""
    most = {"J1": 1.0, "J2": 0.55, "J3": 0.45}
    rows, judged = [], []
    for job, found in results["jobs"].items():
        contenders = found["contenders"]
        for name, row in contenders.items():
            rows.append(
                (f"{job}, {name}", seconds(row["median_seconds"]), f"{row['over_numpy']:.2f}", f"{row['loss']:.4f}")
            )
        ours = contenders["fedpaq, s=1"]["over_numpy"]
        fastest = min(contenders, key=lambda name: contenders[name]["median_seconds"])
        judged.append((f"{job}: at most {most[job]:g} x the NumPy loop", f"{ours:.2f}", ours <= most[job]))
        if job != "J1":
            judged.append((f"{job}: fastest of all", fastest, fastest.startswith("fedpaq")))
    yield "Whole runs. fedpaq quantizes, encodes and averages; the loops written by hand average plain floats."
    yield (
        "J1: logistic regression on MNIST's 0 and 8, 25 of 50 clients, 20 rounds of τ = 5. J2: 92,027 parameters on "
        "CIFAR-10, 25 of 50 clients, 50 rounds of τ = 2. J3: the same network, 100 of 1,000 clients, 10 rounds of "
        "τ = 10. Minibatches of ten throughout."
    )
    yield table(("job", "time", "ratio to NumPy loop", "final loss"), rows)
    yield aims(judged)


def simulation_peers(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/simulation_peers.py."""
    yield (
        "The same jobs in each framework's own idiom, with float32 uploads. Starting and compiling are not "
        "counted. fedpaq also quantizes and encodes."
    )
    rows, judged = [], []
    for job, found in results["jobs"].items():
        for name, row in found["contenders"].items():
            took, over = seconds(row["median_seconds"]), digits(row["over_fedpaq"])
            rows.append((f"{job}, {name}", took, over, f"{row['loss']:.4f}"))
        flower = found["contenders"].get("Flower, Ray")
        if flower is not None:
            over = flower["over_fedpaq"]
            judged.append((f"{job}: 100 times faster than Flower's Ray simulation", digits(over), over >= 100))
    yield table(("job", "time", "ratio to fedpaq", "final loss"), rows)
    if judged:
        yield aims(judged)


def flipped_levels(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/flipped_levels.py."""
    yield (
        "Executors round floats differently in the last bit, and a level flips where that crosses its dither. "
        "The table compares real updates with those of the slow twin, for the same participants, minibatches "
        "and keys."
    )
    yield table(
        ("problem", "executor", "s", "coordinates", "flipped", "share"),
        (
            (
                row["problem"],
                row["executor"],
                row["levels"],
                f"{row['coordinates']:,}",
                row["flipped"],
                f"{row['share']:.0e}" if row["flipped"] else "0",
            )
            for row in results["rows"]
        ),
    )


def sweep(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/sweep.py."""
    contenders = results["contenders"]
    yield f"{results['runs']} runs of J1: 8 step sizes, 5 seeds."
    yield table(
        ("", "time", "ratio to NumPy runs"),
        ((name, seconds(row["median_seconds"]), f"{row['over_numpy']:.2f}") for name, row in contenders.items()),
    )
    ratio = contenders["sweep, s=1"]["over_numpy"]
    yield aims([("at most 0.4 x 40 NumPy runs", f"{ratio:.2f}", ratio <= 0.4)])


def company(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/company.py."""
    rows, judged = [], []
    for condition in results["conditions"]:
        busy = condition["busy_processes"]
        where = f"beside {busy} busy processes" if busy else "alone"
        for job, found in condition["jobs"].items():
            rows += [
                (f"{job} {where}, {name}", seconds(row["median_seconds"]), f"{row['over_one_thread']:.2f}")
                for name, row in found.items()
            ]
            ours = found["fedpaq"]
            if busy:
                ratio = ours["over_one_thread"]
                judged.append((f"{job} {where}: at most 1.2 x one thread", f"{ratio:.2f}", ratio <= 1.2))
            elif "before" in found:
                ratio = ours["median_seconds"] / found["before"]["median_seconds"]
                judged.append((f"{job} {where}: no slower than before", f"{ratio:.2f}", ratio <= 1.0))
    yield (
        "Kernels spread their jobs over threads that sleep while they wait. The caller does not wait for a thread that "
        "got no core. J1 to J3 are those of [the simulation](#simulation-on-a-cpu). One thread is "
        "`NUMBA_NUM_THREADS=1`. Before: the last version whose kernels used OpenMP, whose "
        f"threads spin. Measured on {results['note']}."
    )
    yield table(("job", "time", "ratio to one thread"), rows)
    yield aims(judged)
    yield (
        "torch's own threads are still those of OpenMP. `import fedpaq` before `import torch` has them spin for "
        "microseconds instead of a millisecond (`GOMP_SPINCOUNT`, unless it or `OMP_WAIT_POLICY` is set), and limits "
        "their number to the quota of a container. `NUMBA_NUM_THREADS`, or else `OMP_NUM_THREADS`, says how many "
        "threads kernels take."
    )


def startup(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/startup.py."""
    found = results["commands"]
    yield "mnist-logistic. A first run compiles the kernels that it needs; the disk keeps them for the next."
    yield table(
        ("command", "time", "processor time"),
        ((name, seconds(row["median_seconds"]), seconds(row["processor_seconds"])) for name, row in found.items()),
    )
    took = {name: row["median_seconds"] for name, row in found.items()}
    beyond = took["fedpaq run"] - took["import torch"]
    yield aims(
        [
            ("a run: at most 1.3 s beyond `import torch`", seconds(beyond), beyond <= 1.3),
            ("theory: at most 5 s", seconds(took["fedpaq theory"]), took["fedpaq theory"] <= 5),
            ("the first run: at most 15 s", seconds(took["first fedpaq run"]), took["first fedpaq run"] <= 15),
        ]
    )


def gpu(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/gpu.py."""
    whole, few, many = results["one_round"], results["few_clients"], results["many_clients"]
    quantize = {name: row for name, row in results["quantize"].items() if isinstance(row, dict)}
    yield "Messages, sums and draws equal the CPU's to the bit, updates to 1e-5. Payload sizes:"
    sizes = "payload bytes, here (estimated) and encoded"
    trained = {name: row[sizes] for name, row in results["checks"]["check_training"].items()}
    yield table(
        ("run, s=4", "estimated", "encoded", "error"),
        ((name, a, b, f"{100 * (a / b - 1):+.2f} %") for name, (a, b) in trained.items()),
    )
    yield table(
        ("one round, 92,027 parameters, τ = 10, B = 10", "time"),
        [
            ("10,000 clients, quantized (s=1) and averaged", seconds(whole["round"]["median_seconds"])),
            ("10,000 clients, averaged only", seconds(whole["round_without_quantization"]["median_seconds"])),
            ("local work alone", seconds(whole["batched_seconds"])),
            ("local work alone by `vmap`", seconds(whole["vmap_seconds"])),
            ("100,000 clients, quantized and averaged", seconds(many["median_seconds"])),
        ],
    )
    yield table(
        ("25 clients", "local work", "whole round"),
        (
            (name, seconds(row["local_seconds"]), seconds(row["round_seconds"]))
            for name, row in few.items()
            if isinstance(row, dict)
        ),
    )
    moved, once = "share_of_copy_bandwidth_bytes_moved", "share_of_copy_bandwidth_updates_counted_once"
    yield table(
        ("quantize and add up", "time", "share of copy bandwidth, bytes moved", "share, updates counted once"),
        ((name, seconds(row["seconds"]), f"{row[moved]:.2f}", f"{row[once]:.2f}") for name, row in quantize.items()),
    )
    least, faster = min(row[moved] for row in quantize.values()), results["sweep"]["times_faster"]
    round_seconds, shorter = whole["round"]["median_seconds"], few["times_faster_round_seconds"]
    yield aims(
        [
            ("10,000 clients in at most 150 ms", seconds(round_seconds), round_seconds <= 0.15),
            ("kernels at 0.4 of copy bandwidth, bytes moved", f"{least:.2f}", least >= 0.4),
            ("r = 25: 4 times faster than uncaptured `vmap`, whole round", f"{shorter:.1f}", shorter >= 4),
            ("100,000 clients within 60 GB", size(many["peak_bytes"]), many["peak_bytes"] <= 60e9),
            ("40 runs as one sweep 10 times faster than one by one", f"{faster:.1f}", faster >= 10),
        ]
    )


def models(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/models.py."""
    on_gpu, on_cpu = results["cuda"], results["cpu"]
    yield (
        "One round of real models: tau = 5 local steps of r clients, quantized (s=1) and averaged, against a loop "
        "written by hand: the module, torch.optim.SGD, one client after another, quantizing with the same kernels. "
        "Both under PyTorch's default settings, where convolutions may use TF32; `strict` allows none."
    )
    names = {"resnet": "ResNet-18, p = 11,172,170, B = 20", "transformer": "transformer, p = 4,902,656, B = 8 x 128"}
    cases = [(key, r, f"{key} r={r}") for key in names for r in (1, 10, 100)]
    rows = [
        (f"{names[key]}, r = {r}", *_model_row(on_gpu[section], on_gpu[section].get("bfloat16")))
        for key, r, section in [*cases, ("resnet", "10, strict", "resnet strict")]
    ]
    header = ("model", "loop", "fedpaq", "times faster", "bfloat16", "times faster")
    yield table(header, rows)
    yield (
        "Losses without quantization, how far apart. cuDNN adds in no fixed order unless told to: then the loop does "
        "not equal itself either."
    )
    yield table(
        ("", "loop to itself", "fedpaq to the loop"),
        (
            (
                f"{model}, {order}, after {rounds}",
                f"{found[f'loop_to_itself, {order}, {rounds} rounds']:.0e}",
                f"{found[f'fedpaq_to_loop, {order}, {rounds} rounds']:.0e}",
            )
            for model, found in (
                ("ResNet-18", on_gpu["resnet agreement"]),
                ("ResNet-18 strict", on_gpu["resnet agreement, strict"]),
                ("transformer", on_gpu["transformer agreement"]),
            )
            for order in ("default", "fixed order")
            for rounds in (1, 3)
        ),
    )
    large = on_gpu["large"]
    yield f"A GPT-2-sized module with tied weights, p = {large['dimension']:,}, r = 8, tau = 5, B = 4 x 256."
    yield table(
        ("quantizer", "time per round", "peak memory"),
        (
            (name, seconds(large[name]["seconds"]), size(large[name]["peak_bytes"]))
            for name in ("low-precision:1", "rotated:0.03")
        ),
    )
    yield f"The same loop on a CPU, r = 10. {machine(on_cpu)}"
    kinds = [name for name, found in on_cpu.items() if "auto" in found]
    yield table(
        ("model", "loop", "fedpaq", "times faster", "vmap"),
        (
            (name, *_model_row(on_cpu[name])[:3], seconds(vmap["seconds"]) if vmap else "-")
            for name, vmap in ((name, on_cpu[name].get("vmap")) for name in kinds)
        ),
    )
    yield "Dense networks as fedpaq writes them, and as a subclass for images under a lambda for a loss: the same bits."
    yield table(
        ("network", "plain", "written otherwise", "ratio"),
        (
            (name, seconds(row["plain"]), seconds(row["own"]), f"{row['ratio']:.2f}")
            for name, row in on_cpu["dense, written otherwise"].items()
        ),
    )
    resnet, transformer = on_gpu["resnet r=10"], on_gpu["transformer r=10"]
    exact = on_gpu["resnet agreement, strict"]["fedpaq_to_loop, fixed order, 1 rounds"]
    beside = [on_cpu[name]["auto"]["times_faster"] for name in kinds]
    slowest, faster = min(beside), sum(ratio > 1 for ratio in beside)
    ratios = (resnet["auto"], transformer["auto"], resnet["bfloat16"], transformer["bfloat16"])
    first, second, third, fourth = (found["times_faster"] for found in ratios)
    without = on_gpu["resnet strict"]["auto"]["times_faster"]
    yield aims(
        [
            ("ResNet-18 2.2 times faster than the loop, float32", f"{first:.1f}", first >= 2.2),
            ("the same without TF32", f"{without:.1f}", without >= 2.2),
            ("transformer 3.5 times faster, float32", f"{second:.1f}", second >= 3.5),
            ("ResNet-18 4 times faster, bfloat16", f"{third:.1f}", third >= 4),
            ("transformer 5 times faster, bfloat16", f"{fourth:.1f}", fourth >= 5),
            ("equal losses to 1e-4, ResNet-18, strict, fixed order, one round", f"{exact:.0e}", exact <= 1e-4),
            ("CPU: never slower than the loop by 5 %", f"{slowest:.2f}", slowest >= 0.95),
            ("CPU: faster than the loop on at least two", str(faster), faster >= 2),
        ]
    )


def _model_row(found: Results, mixed: Results | None = None) -> tuple[str, ...]:
    row = (
        seconds(found["eager"]["seconds"]),
        seconds(found["auto"]["seconds"]),
        f"{found['auto']['times_faster']:.1f}",
    )
    extra = ("-", "-") if mixed is None else (seconds(mixed["seconds"]), f"{mixed['times_faster']:.1f}")
    return (*row, *extra)


def scaling(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/scaling.py."""
    if "clients" in results:
        yield from _clients(results["clients"])
    for key, symbol, what in (("participants", "r", "participant"), ("parameters", "p", "parameter")):
        if key in results:
            yield f"By {symbol}: the last column is the cost of one more {what}, compared with the row above."
            yield table(
                (symbol, "time per round", f"per {what} added"),
                ((f"{row['per']:,}", seconds(row["median_seconds"]), _marginal(row)) for row in results[key].values()),
            )
    if "ranks" in results:
        yield from _ranks(results["ranks"])


def _clients(rows: Results) -> Iterable[str]:
    yield "By n, at r = 100: logistic regression, p = 10, two samples per client, τ = 5, B = 10."
    beyond = "bytes_beyond_data_and_partition"
    yield table(
        ("", "time per round", "ratio to n = 1,000", "other memory", "data", "partition"),
        (
            (
                name,
                seconds(row["median_seconds"]),
                f"{row['over_fewest']:.2f}" if "over_fewest" in row else "",
                size(row[beyond]),
                size(row["data_bytes"]),
                size(row["partition_bytes"]),
            )
            for name, row in rows.items()
        ),
    )
    worst = max(row.get("over_fewest", 0.0) for row in rows.values())
    yield aims([("flat in n up to a million: within a quarter of n = 1,000", f"{worst:.2f}", worst <= 1.25)])


def _marginal(row: Results) -> str:
    value = row.get("marginal_seconds")
    return "" if value is None else seconds(value) if value > 0 else "none"


def _ranks(rows: Results) -> Iterable[str]:
    yield (
        "By ranks, on one machine: 40 clients of the 92,027-parameter network, τ = 5, s = 1. Params are the "
        "same to the bit. The ranks share the cores that one process would use alone, and they pay for the "
        "exchange as well: they are meant for several machines or GPUs."
    )
    yield table(
        ("ranks", "time per round", "each receives", "dense all-reduce, float32", "the updates, float32"),
        (
            (
                ranks,
                seconds(row["median_seconds"]),
                size(row["payload_bytes_received_a_round"]),
                size(row["dense_all_reduce_bytes_a_round"]),
                size(row["dense_updates_bytes_a_round"]),
            )
            for ranks, row in rows.items()
        ),
    )


def codec(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/codec.py."""
    yield "Real updates: the payload, with frame and norm, compared with the order-0 entropy of its levels."
    yield table(
        ("update", "s", "payload", "ratio to entropy"),
        (
            (row["name"], row["levels"], size(row["payload_bytes"]), f"{row['payload_over_entropy']:.2f}")
            for row in results["real_sizes"]
        ),
    )
    yield (
        "Speed relative to a `memcpy` of the float32 update; for adding a payload, relative to adding float32. "
        "Larger is faster."
    )
    yield table(
        ("p", "s", "quantize and encode", "decode", "add, ratio to dense add"),
        (
            (
                f"{row['dimension']:,}",
                row["levels"],
                digits(row["quantize_and_encode_over_memcpy"]),
                digits(row["decode_over_memcpy"]),
                digits(row["accumulate_over_add_dense"]),
            )
            for row in results["speed"]
        ),
    )


def peer_codecs(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/peer_codecs.py."""
    yield (
        f"One update of {results['dimension']:,} coordinates. Speeds are in million coordinates per second, of "
        "repeated calls. The last column is for the first call after another codec's turn, when the caches "
        "hold the other codec's data. The error is E||Q(x) - x||² / ||x||²; beside it stands that of `Rotated` "
        "with as many bits."
    )
    header = ("codec", "bits per coordinate", "error", "error of `Rotated`", "encode", "decode")
    yield table(
        (*header, "speed-up of fedpaq", "speed-up, first call"),
        (
            (
                name,
                digits(row["bits_per_coordinate"]),
                digits(row["nmse"]),
                "-" if row["rotated_nmse"] is None else digits(row["rotated_nmse"]),
                digits(row["encode_million_coordinates_a_second"]),
                digits(row["decode_million_coordinates_a_second"]),
                digits(row["encode_speedup_of_fedpaq"]),
                digits(row["first_encode_speedup_of_fedpaq"]),
            )
            for name, row in results["codecs"].items()
        ),
    )
    least, aim = results["least_encode_speedup"], results["aim"]
    alone = results["least_encode_speedup_of_the_lossless_step_alone"]
    yield aims(
        [
            ("smaller than each", "yes" if results["smaller_than_each"] else "no", results["smaller_than_each"]),
            (f"quantizes and encodes {aim} times faster than each", f"{least:.1f}", least >= aim),
            (f"encodes alone {aim} times faster than each quantizes and packs", f"{alone:.1f}", alone >= aim),
        ]
    )


def rate_distortion(results: Results) -> Iterable[str]:
    """Return the section of benchmarks/rate_distortion.py."""
    speed = results["speed"]
    yield (
        f"Million coordinates per second of processor time, one thread, p = {speed['dimension']:,}, medians of "
        f"{speed['repeats']}: quantizing and encoding, decoding and turning back. EDEN is written again in "
        "torch, as for the next section; below one bit it rotates as much and sends a random part, so it is compared "
        "at one bit. From one bit on, about half of `Rotated`'s time is its entropy code, where EDEN packs bits. The "
        "errors are in [Which quantizer](quantizers.md)."
    )
    yield table(
        ("", "encode", "decode", "encode / EDEN", "decode / EDEN"),
        (
            (
                name,
                digits(row["encode_million_a_second"]),
                digits(row["decode_million_a_second"]),
                *(digits(row[key]) if key in row else "-" for key in ("encode_over_eden", "decode_over_eden")),
            )
            for name, row in speed["rows"].items()
        ),
    )
    rows = speed["rows"]
    sparse, dense = (rows[f"Rotated, {bits} bits"]["encode_million_a_second"] for bits in ("0.1", "2"))
    few, many = (
        min(rows[f"Rotated, {bits} bits"]["encode_over_eden"] for bits in some)
        for some in (("0.03", "0.1"), ("1", "4"))
    )
    yield aims(
        [
            ("120 million per second at 0.1 bits", digits(sparse), sparse >= 120),
            ("40 million per second at 2 bits", digits(dense), dense >= 40),
            ("5 times EDEN's speed at 0.1 bits and less", f"{few:.1f}", few >= 5),
            ("5 times EDEN's speed at 1 and 4 bits", f"{many:.1f}", many >= 5),
        ]
    )


SECTIONS: dict[str, tuple[str, Callable[[Results], Iterable[str]]]] = {
    "simulation": ("Simulation on a CPU", simulation),
    "simulation_peers": ("Simulation in other frameworks", simulation_peers),
    "sweep": ("A sweep as one batch", sweep),
    "company": ("In company", company),
    "startup": ("Start-up", startup),
    "flipped_levels": ("Levels that differ between executors", flipped_levels),
    "gpu": ("On a GPU", gpu),
    "models": ("Real models", models),
    "scaling": ("Scaling in n, r, p and ranks", scaling),
    "codec": ("The codec", codec),
    "rate_distortion": ("The rotated quantizer", rate_distortion),
    "peer_codecs": ("Other quantizers and codecs", peer_codecs),
}


def wrapped(part: str) -> str:
    """Return a paragraph in lines of at most 120 characters; tables stay as they are."""
    if part.startswith("|"):
        return part
    return textwrap.fill(part, 118, break_long_words=False, break_on_hyphens=False)


def page() -> str:
    """Return the page; benchmarks without results are left out."""
    parts = INTRODUCTION.rstrip().split("\n\n")
    for name, (title, section) in SECTIONS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            results = json.loads(path.read_text())
            parts += [f"## {title}", f"`python benchmarks/{name}.py`. {machine(results)}", *section(results)]
    return "\n\n".join(map(wrapped, parts)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"written: {PAGE.relative_to(ROOT)}")
