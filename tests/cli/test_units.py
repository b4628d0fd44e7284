"""Units: rates as people type them, amounts as people read them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq.cli.units import format_bytes, format_seconds, parse_bandwidth
from fedpaq.errors import ConfigError

BYTES = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
amounts = st.floats(1e-6, 1e15)


def read_back(text, units):
    """The amount a formatted text stands for, and its number as written."""
    number, unit = text.split(" ")
    return float(number.replace(",", "")) * units[unit], number


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1", 1.0),
        ("5e5", 5e5),
        (" 2.5 ", 2.5),
        ("1bit", 1.0),
        ("1 bit/s", 1.0),
        ("1bps", 1.0),
        ("3 bits", 3.0),
        ("1kbit/s", 1e3),
        ("1Kbit/s", 1e3),
        ("0.5Mbit/s", 5e5),
        ("1 Mbps", 1e6),
        ("1Gbit/s", 1e9),
        ("1B/s", 8.0),
        ("2 MB/s", 16e6),
        ("2Mb/s", 2e6),
        ("7 kbyte/s", 56e3),
        ("7 kbytes", 56e3),
        ("1e-3 Mbit/s", 1e3),
    ],
)
def test_a_rate_is_read_as_written(text, bits):
    assert parse_bandwidth(text) == pytest.approx(bits)


@pytest.mark.parametrize("text", ["", "fast", "Mbit/s", "1Tbit/s", "1.2.3 kbit/s", "1 Mbit/h", "1 M", "--", "1e kb"])
def test_what_is_no_rate_is_refused_by_name_with_examples(text):
    with pytest.raises(ConfigError) as refused:
        parse_bandwidth(text)
    assert str(refused.value) == f"bandwidth={text!r} is not a rate; write e.g. 1Mbit/s, 500kbit/s or 2MB/s"


@given(st.floats(1e-3, 1e6), st.sampled_from(["", "k", "M", "G"]))
@settings(max_examples=50, deadline=None)
def test_a_byte_is_eight_bits_at_every_size(number, prefix):
    assert parse_bandwidth(f"{number!r}{prefix}B/s") == 8 * parse_bandwidth(f"{number!r}{prefix}bit/s")


@given(amounts)
@settings(max_examples=50, deadline=None)
@pytest.mark.parametrize(("formatted", "units"), [(format_bytes, BYTES), (format_seconds, SECONDS)])
def test_a_formatted_amount_is_right_to_half_a_percent_and_never_written_with_an_exponent(formatted, units, amount):
    found, number = read_back(formatted(amount), units)
    assert re.fullmatch(r"[\d,]*\.?\d+(e-\d+)?", number)  # an exponent only for next to nothing
    rounding = 0.5 if formatted is format_bytes else 0.0  # bytes below 1 kB are whole
    assert abs(found - amount) <= 0.00501 * amount + rounding


@given(amounts, amounts)
@settings(max_examples=50, deadline=None)
def test_formatting_keeps_the_order(one, other):
    low, high = sorted([one, other])
    for formatted, units in ((format_bytes, BYTES), (format_seconds, SECONDS)):
        assert read_back(formatted(low), units)[0] <= read_back(formatted(high), units)[0] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (999_999, "1 MB")]
    + [(999_999_999, "1 GB"), (1e9, "1 GB"), (2.5e12, "2,500 GB"), (999.7, "1 kB")],
)
def test_bytes_change_unit_where_three_digits_end(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 ms"), (1e-6, "0.001 ms"), (0.9999, "1 s"), (59.4, "59.4 s"), (59.99, "1 min"), (3599.9, "1 h")]
    + [(86399.0, "1 days"), (86400.0 * 1234.0, "1,234 days")],
)
def test_times_change_unit_where_the_next_begins(seconds, text):
    assert format_seconds(seconds) == text


def test_an_infinite_time_is_said_to_be():
    assert format_seconds(math.inf) == "inf days"
