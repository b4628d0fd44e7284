"""The registry: a quantizer from text and back, plug-ins by name, errors that say what to write."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from fedpaq import ConfigError, Identity, LowPrecision, Rotated
from fedpaq.quantizers import QUANTIZERS, as_quantizer, names, parse, registry, text_of

TEXTS = {
    "low-precision:1": LowPrecision(1),
    "low-precision:4,bucket_size=128": LowPrecision(4, 128),
    "rotated:0.03": Rotated(bits=0.03),
    "rotated:payload_bytes=300": Rotated(payload_bytes=300),
    "rotated:0.03,blocks=1": Rotated(bits=0.03, blocks=1),
    "none": Identity(),
}


@pytest.mark.parametrize(("text", "quantizer"), TEXTS.items())
def test_text_and_quantizer_name_each_other(text, quantizer):
    assert parse(text) == quantizer and text_of(quantizer) == text
    assert as_quantizer(text) == quantizer and as_quantizer(quantizer) is quantizer


def test_spaces_and_other_ways_to_write_it_are_understood():
    assert parse(" low-precision : 4 , bucket_size = 8 ".replace(" :", ":")) == LowPrecision(4, 8)
    assert parse("rotated:bits=0.5") == Rotated(0.5) and parse("rotated:1e-2") == Rotated(0.01)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("low-precison:1", r"unknown quantizer 'low-precison'.*did you mean 'low-precision'"),
        ("", "unknown quantizer ''"),
        ("low-precision", r"settings that do not fit; write low-precision:LEVELS\[,bucket_size=...\]$"),
        ("low-precision:1,2,3", "settings that do not fit"),
        ("low-precision:1,width=3", "settings that do not fit"),
        ("low-precision:one", "'one' is not a number"),
        ("low-precision:0", "levels=0"),
        ("none:1", "settings that do not fit; write none"),
        ("rotated", r"needs its settings; write rotated:BITS"),
        ("rotated:99", "bits=99"),
    ],
)
def test_bad_texts_are_refused_with_what_to_write(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse(text)


@dataclass(frozen=True)
class Mine:
    strength: float = 2.0


def test_a_quantizer_joins_by_one_line(monkeypatch):
    monkeypatch.setitem(QUANTIZERS, "mine", Mine)
    assert "mine" in names() and parse("mine") == Mine() and parse("mine:3") == Mine(3)
    assert text_of(Mine(2.5)) == "mine:2.5"


def test_installed_quantizers_are_loaded_when_first_named(monkeypatch):
    points = {
        "theirs": EntryPoint("theirs", "fedpaq.quantizers.identity:Identity", registry.GROUP),
        "broken": EntryPoint("broken", "no_such_module:Thing", registry.GROUP),
    }
    monkeypatch.setattr(registry, "installed", lambda: points)
    monkeypatch.setattr(registry, "QUANTIZERS", dict(QUANTIZERS))
    assert names()[-2:] == ["theirs", "broken"] and parse("theirs") == Identity()
    with pytest.raises(ConfigError, match=r"='broken' is installed but cannot be loaded.*no_such_module"):
        parse("broken")


def test_an_unregistered_quantizer_is_named_by_its_class():
    assert text_of(Mine(7)) == "Mine:7"


@pytest.mark.parametrize("bad", [None, 4, ["none"], LowPrecision(4)])
def test_what_is_not_text_is_not_parsed(bad):
    with pytest.raises(ConfigError, match=r"^quantizer=.* is not text; write e.g. 'low-precision:4'"):
        parse(bad)
