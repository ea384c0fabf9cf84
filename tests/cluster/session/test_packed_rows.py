"""The rows of a plan for texts that run together, and the terms of their batch."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pliant.cluster.session.cluster_batches import joint_request, packed_rows
from pliant.ir.endpoint import Request


@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=64), more=st.integers(0, 4096))
def test_batches_share_few_plans_and_waste_few_rows(lengths: list[int], more: int) -> None:
    """A plan is for one number of rows; no more than an eighth, or one row, belongs to no text."""
    n = sum(lengths)
    rows = packed_rows(lengths, n + more)
    assert n <= rows <= n + more
    assert rows - n <= max(n // 8, 1)
    if len(lengths) == 1:
        assert rows == n


def test_eight_plans_serve_an_octave_of_rows() -> None:
    """With a plan for each sum, most batches would wait for their plan as long as for their run."""
    for least in (32, 64, 128, 256):
        found = {packed_rows((n - 1, 1), 4096) for n in range(least + 1, 2 * least + 1)}
        assert len(found) == 8


def test_a_batch_keeps_the_earliest_deadline_and_the_highest_floor() -> None:
    """Nobody's terms are worse for the company; the level is chosen for all rows."""
    tensors = {"ids": np.zeros(3, np.int32)}
    requests = [Request(n, tensors=tensors, deadline_s=d) for n, d in ((30, None), (5, 0.5), (62, 0.2))]
    found = joint_request([*requests, Request(3, tensors=tensors, accuracy_floor=0.7)], 512)
    assert (found.length, found.deadline_s, found.accuracy_floor) == (104, 0.2, 0.7)
    assert joint_request(requests[:1], 512) == requests[0]
