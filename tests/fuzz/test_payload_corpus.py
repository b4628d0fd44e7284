"""Every input the fuzzer kept is still treated well."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.decode_payload import check

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())


def test_the_corpus_is_there():
    assert len(CORPUS) >= 8


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_a_corpus_input_is_decoded_or_refused(path):
    check(path.read_bytes())
