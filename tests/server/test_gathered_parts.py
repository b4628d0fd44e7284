"""What one rank sends the others."""

from __future__ import annotations

import numpy as np

from fedpaq.server.gathered import JOB, _unpacked


def test_a_rank_s_part_is_unpacked_as_it_was_packed():
    payloads = [b"a", b"", b"ccc"]
    jobs = np.array([(len(payload), 7, client) for client, payload in enumerate(payloads)], JOB)
    part = (3).to_bytes(8, "little") + jobs.tobytes() + bytes([0, 1]) + b"".join(payloads)
    found, contents, diverged = _unpacked(part, runs=2)
    assert [bytes(payload) for payload in contents] == payloads and np.array_equal(found, jobs)
    assert diverged.tolist() == [0, 1]


def test_a_rank_without_jobs_sends_an_empty_part():
    found, contents, diverged = _unpacked((0).to_bytes(8, "little") + bytes([0]), runs=1)
    assert len(found) == 0 and contents == [] and diverged.tolist() == [0]
