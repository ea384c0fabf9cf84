"""Preload sets by invariant: they fit, and they fill from the bottom."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.bitwidths import BITS, FULL_BITS
from pliant.ir.link import Link
from pliant.plan.submodel.io_plan import Ledger
from pliant.plan.submodel.preload_set import FixedRule, held_bytes, hold_in_order, preload
from pliant.plan.submodel.shape import StoreShape

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


@given(
    n_bytes=sizes,
    more=sizes,
    m=st.sampled_from([1, 3, 4]),
    seek=st.floats(0, 12),
    later=st.floats(0, 8),
    wider=st.sampled_from([0.0, 1.0]),
)
def test_a_fixed_order_is_nested(
    n_bytes: int, more: int, m: int, seek: float, later: float, wider: float
) -> None:
    """What a smaller buffer holds for some length, a larger one must not have thrown out for another."""
    shape = StoreShape(3, 4, (1, 3, 4), 10, 160, (3,))
    how = {"seek": seek, "later": later, "wider": wider}
    small, large = (hold_in_order(shape, 3, m, size, **how) for size in (n_bytes, n_bytes + more))
    assert (large >= small).all()
    assert held_bytes(shape, small) <= n_bytes
    assert (hold_in_order(shape, 3, m, 3 * m * 160, **how) == FULL_BITS).all()


def test_the_lowest_planes_of_all_layers_are_held_first() -> None:
    """Every submodel runs with them, at any target; and the narrowest width is part of every other."""
    shape = StoreShape(2, 3, (1, 3), 10, 160, (2,))
    held = [hold_in_order(shape, 2, 3, size, seek=0.0, wider=1.0).tolist() for size in (19, 40, 60, 159, 240)]
    assert held == [
        [[1, 0, 0], [0, 0, 0]],
        [[2, 0, 0], [2, 0, 0]],
        [[3, 1, 0], [2, 0, 0]],
        [[4, 2, 2], [3, 2, 2]],
        [[5, 4, 4], [5, 3, 3]],
    ]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), planes_per_load=st.integers(1, 4))
def test_no_row_is_dearer_for_more_planes_in_memory(seed: int, planes_per_load: int) -> None:
    """A gap in what is read is one more read; were it dearer than the gap, more memory would cost bits."""
    rng = np.random.default_rng(seed)
    m_all = int(rng.integers(2, 7))
    widths = tuple(sorted({int(w) for w in rng.integers(1, m_all + 1, 3)} | {m_all}))
    shape = StoreShape(2, m_all, widths, 10, 160, (2,))
    m = int(rng.choice(widths))
    seek = float(rng.uniform(0, 2 * widths[0] + 2))
    wanted = rng.choice([2, 3, 4, 5, 6, FULL_BITS], (2, m)).tolist()
    before_s = np.full(2, np.inf)
    for n_bytes in range(0, 2 * m_all * 160, 10):
        held = hold_in_order(shape, 2, m_all, n_bytes, seek=seek, wider=1.0)[:, :m]
        ledger = Ledger(
            shape, m, Link(seek, 10.0), [0.0, 0.0], held, is_anytime=True, full_chunk=1,
            planes_per_load=planes_per_load,
        )  # fmt: skip
        ledger.force_bits(wanted)
        assert (np.array(ledger.load_s) <= before_s + 1e-9).all()
        before_s = np.array(ledger.load_s)
