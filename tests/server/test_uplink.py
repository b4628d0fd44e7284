"""Uplink: which one carries what."""

from __future__ import annotations

import pytest

import fedpaq
from fedpaq.hardware.ranks import ALONE, Ranks
from fedpaq.server.aggregation import ClippedMean, Mean
from fedpaq.server.encoded import Encoded
from fedpaq.server.gathered import Gathered
from fedpaq.server.uplink import choose_uplink
from small_rounds import QUANTIZERS


def test_shares_of_one_process_are_everything():
    for uplink in (Encoded(QUANTIZERS[0], Mean()), Gathered(QUANTIZERS[0], Mean(), ALONE)):
        assert list(range(10))[uplink.share(10)] == list(range(10))
        assert uplink.payload_size_source == "encoded"


class OwnMean(Mean):
    """A server of one's own, which may do anything with messages."""


class OwnIdentity(fedpaq.Identity):
    """A quantizer of one's own."""


@pytest.mark.parametrize(
    ("quantizer", "server", "ranks", "kind"),
    [
        (fedpaq.Identity(), Mean(), Ranks(0, 2), Gathered),
        (OwnIdentity(), Mean(), Ranks(0, 2), Gathered),
        (fedpaq.Identity(), OwnMean(), Ranks(0, 2), Gathered),
        (fedpaq.LowPrecision(1), Mean(), Ranks(1, 2), Gathered),
        (fedpaq.Identity(), ClippedMean(), Ranks(1, 2), Gathered),
        (fedpaq.Identity(), Mean(), ALONE, Encoded),
        (OwnIdentity(), OwnMean(), ALONE, Encoded),
    ],
)
def test_several_ranks_gather_and_one_process_encodes(quantizer, server, ranks, kind, logistic):
    assert type(choose_uplink(quantizer, server, logistic, ranks)) is kind
