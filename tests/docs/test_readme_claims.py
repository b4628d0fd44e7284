"""The README's table of claims says what the stored results say."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedpaq import Key, LowPrecision, encode
from fedpaq.codec import order0_entropy
from repository import ROOT

README = (ROOT / "README.md").read_text()


def results(name):
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def verdicts(count):
    judged = json.loads((ROOT / "docs" / "figures" / "paper" / "verdicts.json").read_text())
    found = [entry["judged"][count]["verdict"] for entry in judged]
    return [found.count(verdict) for verdict in ("holds", "does not hold", "tie", "undecided")], len(found)


def models():
    return json.loads((ROOT / "docs" / "figures" / "models-verdicts.json").read_text())


def claims():
    codec, gpu, scaling = results("codec"), results("gpu"), results("scaling")
    (added,) = [r for r in codec["speed"] if r["dimension"] == 25_000_000 and r["levels"] == 1]
    yield f"{added['accumulate_over_add_dense']:.0f} times faster than adding a dense vector"
    least = min(row["payload_over_entropy"] for row in codec["real_sizes"])
    yield f"at most 1.02 x entropy + 24 bytes; down to {least:.2f} x on real updates"
    assert codec["missed"] == []
    found = [results("models")["cuda"][f"{model} r=10"] for model in ("resnet", "transformer")]
    plain, mixed = ([each[way]["times_faster"] for each in found] for way in ("auto", "bfloat16"))
    yield "{:.1f} and {:.1f} times faster than a plain PyTorch loop".format(*plain)
    yield "{:.1f} and {:.1f} in bfloat16".format(*mixed)
    peers = results("peer_codecs")
    ours, *others = (row["bits_per_coordinate"] for row in peers["codecs"].values())
    assert len(others) == 6
    yield (
        f"{peers['least_encode_speedup']:.1f} times faster than the fastest of six other codecs, "
        f"{min(others) / ours:.1f} times smaller than the smallest"
    )
    jobs = results("simulation")["jobs"]["J1"]["contenders"]
    ours = jobs["fedpaq, s=1"]["median_seconds"]
    yield f"{jobs['plain PyTorch loop']['median_seconds'] / ours:.0f} times faster than a plain PyTorch loop"
    peers = {name: row["over_fedpaq"] for name, row in results("simulation_peers")["jobs"]["J1"]["contenders"].items()}
    yield (
        f"{peers['Flower, Ray']:.0f} times faster than Flower's Ray simulation, {peers['pfl']:.2g} than pfl, "
        f"{peers['FedJAX']:.2g} than FedJAX"
    )
    yield f"{results('sweep')['contenders']['sweep, s=1']['over_numpy']:.2f} of the time of 40"
    yield f"{1e3 * gpu['one_round']['round']['median_seconds']:.0f} ms, quantized and averaged"
    rotated = results("gpu_rotated")["one_round"]["rotated(0.03 bits)"]["median_seconds"]
    yield f"{1e3 * rotated:.0f} ms, equal to the CPU to the bit"
    (resnet,) = [study for study in models() if study["name"] == "resnet-iid"]
    assert resnet["rounds"] == 150 and resnet["seeds"] == 3
    arms = {row["arm"]: f"{row['bytes_per_upload']:,} bytes and {row['measure']:.1f} %" for row in resnet["rows"]}
    yield f"{arms['Rotated 0.0024 bits']} with `Rotated`, {arms['float32']} as float32, {arms['s = 1']} with s = 1"
    yield f"{scaling['clients']['iid, n=1000000']['over_fewest']:.2f} times as long"
    (bytes_, rows), (elias, _), (width, _) = (verdicts(count) for count in ("payload", "elias", "fixed-width"))
    assert bytes_[3] == elias[3] == width[3] == 0  # undecided
    yield "hold / do not / tie, of {}: {} / {} / {} in real bytes".format(rows, *bytes_[:3])
    yield "{} / {} / {} by the Elias bound, {} / {} / {} at a fixed width".format(*elias[:3], *width[:3])
    yield f"{bytes_[0]} of {rows} judged sentences hold under real bytes"
    yield f"a fixed width, {width[0]} hold"
    plans = results("planner")["rows"]
    yield f"at most {max(row['over_best'] for row in plans):.2f} x the grid's best time"
    for rounds, is_that in (("four or more rounds", lambda n: n > 3), ("two or three", lambda n: n <= 3)):
        shares = [100 * row["share_at_target"] for row in plans if is_that(row["scheduled_rounds"])]
        yield f"{min(shares):.0f} % to {max(shares):.0f} % with {rounds}"
    flower = results("flower")["92027"]
    up = [flower[name]["wire"]["wire_bytes_up"] / 1e3 for name in ("s=1", "float32")]
    yield f"{up[0]:.1f} kB up instead of {up[1]:.1f} kB"
    yield f"{results('ingest')['rows'][0]['payloads_per_second']:,.0f}"[:-2] + "00 payloads per second"


@pytest.mark.parametrize("claim", [*claims()])
def test_a_claim_is_what_was_measured(claim):
    assert claim in " ".join(README.split())


def test_the_upload_of_the_first_claim_has_that_size():
    """The one that ``fedpaq bench codec`` measures."""
    update = np.random.default_rng(0).standard_normal(92_027).astype(np.float32)
    message = LowPrecision(1).quantize(update, key=Key(seed=0))
    size, entropy = len(encode(message)), order0_entropy(message.signed_levels) / 8
    assert f"{size} bytes instead of 368,108 (entropy of its levels: {entropy:.0f})" in README
    assert 4 * 92_027 == 368_108
