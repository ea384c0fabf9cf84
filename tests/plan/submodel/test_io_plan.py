"""AIB bookkeeping: Figure 6 of STI, allocation against brute force, and the ledger's own sums."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.link import Link
from pliant.ir.program import FULL, SliceRun
from pliant.plan.submodel.bit_rows import fill_rows
from pliant.plan.submodel.io_plan import (
    LLOYD_ERRORS,
    Ledger,
    count_reads,
    fidelity,
    fill_by_importance,
    fill_floor,
    fill_uniform,
    importance_weights,
)
from pliant.plan.submodel.shape import StoreShape

# A 2-bit shard loads in 0.2 s: a plane is 1 byte at 10 bytes a second.
FIGURE_6 = StoreShape(2, 3, (3,), 1, 16, (2,))
FIGURE_6_DISK = Link(0.0, 10.0)


def figure_6() -> Ledger:
    held = np.array([[2, 2, 2], [0, 0, 0]])
    return Ledger(FIGURE_6, 3, FIGURE_6_DISK, [0.0, 1.0], held, is_anytime=False, full_chunk=3)


def test_figure_6_starts_with_the_bonus_of_the_preloaded_shards() -> None:
    """T = 2 s, 1 s a layer, three 2-bit layer-0 shards in S: AIBs start at 0.6 and 1.6 s (STI 5.4.2)."""
    ledger = figure_6()
    bonus = np.cumsum([ledger.held_seconds(k) for k in range(2)])
    assert np.allclose(np.array([0.0, 1.0]) + bonus, [0.6, 1.6])


def test_figure_6_has_0_and_1_s_left_after_layer_0() -> None:
    """Filling S debits 0.6 s from both AIBs, so that layer 0 can read nothing and layer 1 has a second."""
    ledger = figure_6()
    assert np.allclose(ledger.spare_s, [0.0, 1.0])
    assert not ledger.raise_to(0, 0b001, 3)


def test_figure_6_accepts_a_choice_of_1_s_and_refuses_one_of_1_1_s() -> None:
    """Candidates A and B of Figure 6 are valid, C (AIB(1) = -0.1 s) is not."""
    ledger = figure_6()
    assert ledger.raise_to(1, 0b011, 2)
    assert ledger.raise_to(1, 0b100, 6)
    assert np.allclose(ledger.spare_s, [0.0, 0.0])
    assert ledger.is_valid
    other = figure_6()
    assert other.raise_to(1, 0b011, 2)
    assert other.raise_to(1, 0b001, 3)
    assert not other.raise_to(1, 0b100, 6)
    other.force([0, 0b100], 6)
    assert np.allclose(other.spare_s, [0.0, -0.1])
    assert not other.is_valid


def test_raising_nested_planes_costs_only_the_missing_ones() -> None:
    """Codes are stored once: from j to k bits reads k - j planes, whether j were read or held."""
    ledger = Ledger(
        FIGURE_6, 3, FIGURE_6_DISK, [9.0, 9.0], np.full((2, 3), 2), is_anytime=False, full_chunk=3
    )
    assert ledger.price(0, 0b111, 5)[0] == pytest.approx(3 * 3 * 0.1)
    ledger.raise_to(0, 0b001, 4)
    assert ledger.price(0, 0b001, 5)[0] == pytest.approx(0.1)


@pytest.mark.parametrize(("is_anytime", "planes"), [(False, 0), (True, 2)])
def test_full_fidelity_drops_the_planes_it_replaces(is_anytime: bool, planes: int) -> None:
    """32 bits are a read of their own; only anytime execution keeps two base planes to fall back on."""
    held = np.zeros((2, 3), dtype=int)
    ledger = Ledger(FIGURE_6, 3, FIGURE_6_DISK, [99.0, 99.0], held, is_anytime=is_anytime, full_chunk=3)
    ledger.raise_to(0, 0b111, 6)
    ledger.raise_to(0, 0b111, FULL_BITS)
    assert ledger.load_s[0] == pytest.approx(3 * (1.6 + planes * 0.1))
    load = ledger.load(0, 7)
    assert [r.part for r in load.runs] == [*[0, 1][:planes], FULL]
    assert load.runs[-1] == SliceRun(7, FULL, 0, 3)
    assert bool(load.refinements) == is_anytime


def test_the_first_pass_takes_the_highest_uniform_bits_that_fit() -> None:
    """STI 5.4.3: from 2 bits up, the last uniform bitwidth that leaves every AIB non-negative."""
    held = np.zeros((2, 3), dtype=int)
    ledger = Ledger(FIGURE_6, 3, FIGURE_6_DISK, [1.3, 2.6], held, is_anytime=False, full_chunk=3)
    assert fill_floor(ledger)
    assert fill_uniform(ledger, ledger.shards_below(FULL_BITS)) == 4
    assert ledger.bits == [[4] * 3] * 2
    assert np.allclose(ledger.spare_s, [0.1, 0.2])


def test_the_second_pass_raises_the_most_important_shard_to_the_highest_bits() -> None:
    """STI 5.4.3: the most important shard gets all it can before the next one gets anything."""
    held = np.full((2, 3), 2)
    ledger = Ledger(FIGURE_6, 3, FIGURE_6_DISK, [0.5, 2.2], held, is_anytime=False, full_chunk=3)
    fill_by_importance(ledger, np.array([[1.0, 2.0, 3.0], [4.0, 6.0, 5.0]]))
    assert ledger.bits == [[2, 2, 2], [4, FULL_BITS, 6]]
    assert np.allclose(ledger.spare_s, [0.5, 0.0])


rows = st.integers(0, 2**31).map(np.random.default_rng)


@settings(max_examples=60, deadline=None)
@given(rng=rows, n=st.integers(1, 2), m=st.integers(1, 2))
def test_rows_find_the_best_there_is_in_planes(rng: np.random.Generator, n: int, m: int) -> None:
    """Without read latency nothing is rounded and no row is missing: no bits of 2..6 are worth more."""
    shape = StoreShape(n, m, (m,), 1, 10**6, (n,))
    budget_s = np.cumsum(rng.uniform(0, 1.2, n)) + 0.2 * m
    weights = importance_weights(rng.random((n, m)))
    held = np.full((n, m), 2)
    ledger = Ledger(shape, m, Link(0.0, 10.0), budget_s.tolist(), held, is_anytime=False, full_chunk=m)
    fill_floor(ledger)
    ledger = fill_rows(ledger, weights, LLOYD_ERRORS)
    assert ledger.is_valid
    best = max(
        fidelity(bits.tolist(), weights, LLOYD_ERRORS)
        for flat in itertools.product((2, 3, 4, 5, 6), repeat=n * m)
        for bits in [np.array(flat).reshape(n, m)]
        if (np.cumsum((bits - 2).sum(axis=1)) * 0.1 <= budget_s + 1e-9).all()
    )
    assert fidelity(ledger.bits, weights, LLOYD_ERRORS) == pytest.approx(best, abs=1e-12)


def test_a_disk_of_long_latency_takes_no_more_memory_to_plan_for() -> None:
    """IO time was counted in parts of a plane's transfer alone: 4 ms a read at 100 GB/s took gigabytes."""
    n = m = 4
    shape = StoreShape(n, m, (m,), 1, 16, (n,))
    disk, held = Link(1e-5, 1e9), np.full((n, m), 2)
    budget_s = [1.1 * (k + 1) * disk.latency_s for k in range(n)]
    ledger = Ledger(shape, m, disk, budget_s, held, is_anytime=True, full_chunk=1)
    fill_floor(ledger)
    tracemalloc.start()
    try:
        ledger = fill_rows(ledger, importance_weights(np.ones((n, m))), LLOYD_ERRORS)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10**7
    assert ledger.is_valid
    assert ledger.bits == [[3] * m] * n  # one read fits into each layer's time


@settings(max_examples=60, deadline=None)
@given(rng=rows, is_anytime=st.booleans(), chunk=st.integers(1, 5))
def test_the_ledger_debits_exactly_what_its_loads_read(
    rng: np.random.Generator, is_anytime: bool, chunk: int
) -> None:
    """Debits are summed step by step; the loads handed to the program must cost exactly that."""
    n, m = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    spare = int(rng.integers(0, 2))  # at full width, more parts touch on the disk
    widths = tuple(sorted({int(w) for w in rng.integers(1, m + spare + 1, 2)} | {m}))
    shape = StoreShape(n, m + spare, widths, 64, 1024, (n,))
    disk = Link(float(rng.uniform(0, 1e-3)), 1e5)
    held = rng.choice([0, 1, 2, 4, 6, FULL_BITS], (n, m))
    budget_s = np.cumsum(rng.uniform(0, 0.05, n)).tolist()
    ledger = Ledger(
        shape,
        m,
        disk,
        budget_s,
        held,
        is_anytime=is_anytime,
        full_chunk=chunk,
        planes_per_load=int(rng.integers(1, 4)),
    )
    fill_floor(ledger)
    weights = importance_weights(rng.random((n, m)))
    ledger = fill_rows(ledger, weights, LLOYD_ERRORS)
    fill_by_importance(ledger, weights)
    read_s = []
    for k in range(n):
        runs = ledger.load(k, k).runs
        n_bytes = sum(r.count * (1024 if r.part == FULL else 64) for r in runs)
        load = ledger.load(k, k)
        n_reads = sum(count_reads(shape, part) for part in (load.base, *load.refinements))
        read_s.append(disk.seconds(n_bytes, n_reads) if runs else 0.0)
        assert_planes_suffice(ledger, k, held[k])
    assert np.allclose(np.array(budget_s) - np.cumsum(read_s), ledger.spare_s, atol=1e-12)


def assert_planes_suffice(ledger: Ledger, k: int, held: np.ndarray) -> None:
    """Every shard can run at its bits from what is held and read, and nothing held is read again."""
    read: dict[int, set[int]] = {s: set() for s in range(ledger.m)}
    for run in ledger.load(k, k).runs:
        for s in range(run.first, run.first + run.count):
            assert run.part not in read[s]
            read[s].add(run.part)
    for s, bits in enumerate(ledger.bits[k]):
        if held[s] == FULL_BITS:
            assert not read[s]
        elif bits == FULL_BITS:
            assert FULL in read[s]
        else:
            assert set(range(held[s])) | read[s] == set(range(bits))
            assert not set(range(held[s])) & read[s]


def test_weights_keep_the_order_of_importance_and_have_mean_1() -> None:
    """Ablation scores may be negative or equal; allocation needs positive weights in the same order."""
    importance = np.array([[-0.2, 0.5], [0.1, 0.0]])
    weights = importance_weights(importance)
    assert (np.argsort(weights, axis=None) == np.argsort(importance, axis=None)).all()
    assert weights.mean() == pytest.approx(1)
    assert weights.min() > 0
    assert (importance_weights(np.zeros((2, 2))) == 1).all()


@pytest.mark.parametrize(("m", "reads"), [(1, 1), (2, 3), (3, 3), (4, 1)])
def test_the_ledger_counts_the_reads_of_the_files_order(m: int, reads: int) -> None:
    """Six reads would cost six latencies: narrowest and whole width are one at any number of bits."""
    shape = StoreShape(1, 4, (1, 2, 3, 4), 64, 1024, (1,))
    held = np.zeros((1, m), dtype=np.int64)
    ledger = Ledger(shape, m, Link(1.0, 1e9), [99.0], held, is_anytime=False, full_chunk=m)
    ledger.raise_to(0, (1 << m) - 1, 6)
    assert ledger.load_s[0] == pytest.approx(reads, abs=1e-5)
    assert count_reads(shape, ledger.load(0, 0).runs) == reads
