"""Protocol: records and arrays as they travel between mod and strategy."""

from __future__ import annotations

import pytest
from flwr.app import ConfigRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpaq import ConfigError
from fedpaq.flower import protocol

pytestmark = pytest.mark.flower


def test_a_question_and_an_answer_carry_the_version():
    content = RecordDict({protocol.RECORD: protocol.question(protocol.TRAIN, seed="1", round=2)})
    read = protocol.read_record(content, "missing")
    assert dict(read) == {"version": 3, "asked": "train", "seed": "1", "round": 2}
    assert dict(protocol.answer(exact=b"x")) == {"version": 3, "exact": b"x"}


def test_a_missing_record_is_told_in_the_caller_s_words():
    with pytest.raises(ConfigError, match=r"^what is missing$"):
        protocol.read_record(RecordDict(), "what is missing")


@pytest.mark.parametrize("version", [0, 1, "2", None])
def test_every_other_version_is_refused_and_named(version):
    values = {} if version is None else {"version": version}
    with pytest.raises(ConfigError) as refused:
        protocol.read_record(RecordDict({protocol.RECORD: ConfigRecord(values)}), "missing")
    assert f"version={version!r} of the other side's Flower protocol" in str(refused.value)
    assert "install the same fedpaq on server and clients" in str(refused.value)


@given(st.binary(max_size=200))
@settings(max_examples=30, deadline=None)
def test_bytes_travel_as_they_are_and_are_no_numpy_array(data):
    array = protocol.bytes_array(protocol.PAYLOAD, data)
    assert array.data == data and array.shape == (len(data),)
    with pytest.raises(TypeError):
        array.numpy()
