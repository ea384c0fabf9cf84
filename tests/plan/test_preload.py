"""Preload sets by invariant: they fit, and they fill from the bottom."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pliant.plan.preload import FixedRule, held_bytes, hold_first, preload
from pliant.plan.shape import BITS, FULL_BITS, StoreShape

SHAPE = StoreShape(5, 4, (4,), 10, 160, (5,))
rules: st.SearchStrategy[FixedRule] = st.sampled_from(["shards", "planes", "base"])
sizes = st.integers(0, 4000)


@given(n_bytes=sizes, rule=rules, bits=st.sampled_from(BITS[1:]))
def test_a_preload_set_fits_its_buffer_and_wastes_less_than_a_shard(
    n_bytes: int, rule: FixedRule, bits: int
) -> None:
    """As much as |S| holds, never more."""
    held = preload(SHAPE, 5, 4, n_bytes, rule, bits)
    used = held_bytes(SHAPE, held)
    assert used <= n_bytes
    # By shards, less than one shard is left over; by planes, less than one plane, unless nothing is missing.
    price = SHAPE.shard_bytes(bits) if rule == "shards" else SHAPE.plane_bytes
    if rule != "shards" and bits == FULL_BITS:
        price = SHAPE.full_bytes
    assert n_bytes - used < price or (held >= min(bits, FULL_BITS)).all()


@given(n_bytes=sizes, rule=st.sampled_from(["shards", "planes"]), bits=st.sampled_from(BITS[1:]))
def test_no_layer_is_preloaded_before_the_ones_below_it(n_bytes: int, rule: FixedRule, bits: int) -> None:
    """Bottom layers run first, so their planes earn bonus IO for every layer above (STI 5.4.2)."""
    held = preload(SHAPE, 5, 4, n_bytes, rule, bits)
    started = held.any(axis=1)
    full = (held >= min(bits, 6)).all(axis=1)
    for k in range(1, 5):
        assert not started[k] or full[k - 1]


def test_base_puts_the_low_planes_of_every_layer_first() -> None:
    """With two planes everywhere no layer has to wait for IO, however slow."""
    held = preload(SHAPE, 5, 4, 2 * 20 * 10 + 35, "base", 6)
    assert (held >= 2).all()
    assert held[0].tolist() == [3, 3, 3, 2]


@given(n_bytes=sizes, more=sizes, rule=rules, bits=st.sampled_from(BITS[1:6]))
def test_a_larger_buffer_holds_all_that_a_smaller_one_does(
    n_bytes: int, more: int, rule: FixedRule, bits: int
) -> None:
    """Growing the buffer of a running session never throws anything out."""
    small = preload(SHAPE, 5, 4, n_bytes, rule, bits)
    assert (preload(SHAPE, 5, 4, n_bytes + more, rule, bits) >= small).all()


def test_a_buffer_of_nothing_holds_nothing() -> None:
    """|S| = 0 is the paper's Ours-0MB."""
    assert not preload(SHAPE, 5, 4, 0, "base", 6).any()
    assert held_bytes(SHAPE, np.array([[FULL_BITS, 2]])) == 180


def test_what_is_read_first_is_held_first() -> None:
    """Bytes in memory serve their layer and all above it, so the first bytes read are worth most."""
    held = np.zeros((2, 3), dtype=np.int64)
    shape = StoreShape(2, 3, (3,), 10, 160, (2,))
    need = [[0b111, 0b111, 0b100, 0, 0, 0, 0b001], [0b111, 0b111, 0, 0, 0, 0, 0]]
    assert hold_first(shape, held, need, 0).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert hold_first(shape, held, need, 40).tolist() == [[2, 1, 1], [0, 0, 0]]
    # Full fidelity does not fit, so the bytes go to the next layer.
    assert hold_first(shape, held, need, 99).tolist() == [[2, 2, 3], [1, 1, 0]]
    # It replaces the two base planes of its shard: 70 + 160 - 20 bytes.
    assert hold_first(shape, held, need, 210).tolist() == [[32, 2, 3], [0, 0, 0]]
