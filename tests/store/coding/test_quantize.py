"""Quantizers: nesting, optimality, outliers, and the design's table on a real layer."""

import math
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from pliant.errors import StoreError
from pliant.ir.bitwidths import PLANES
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.coding.encode_layer import relative_errors
from pliant.store.coding.quantize import (
    Quantizer,
    equal_population_edges,
    fit,
    lloyd_edges,
    outlier_distance,
    quantize_table,
    to_bfloat16,
)

QUANTIZERS: tuple[Quantizer, ...] = get_args(Quantizer)
floats = st.floats(-1.0, 1.0, width=32)
weights = nps.arrays(np.float32, st.integers(1, 300), elements=floats) | nps.arrays(
    np.float32, st.integers(1, 300), elements=st.sampled_from([-0.25, 0.0, 0.125, 0.25])
)


def gaussian(n: int, seed: int = 0, scale: float = 0.04) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, scale, n).astype(np.float32)


def alone(values: np.ndarray, is_outlier: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The paper's quantizer at k bits alone: stable sort, 2**k clusters of equal population, plain means."""
    kept = np.flatnonzero(~is_outlier)
    order = sorted(kept.tolist(), key=lambda i: (values[i], i))
    codes = np.zeros(values.size, np.uint8)
    members: list[list[float]] = [[] for _ in range(1 << k)]
    for rank, i in enumerate(order):
        cluster = rank * (1 << k) // len(order)
        codes[i] = cluster
        members[cluster].append(float(values[i]))
    means = np.array([math.fsum(m) / len(m) if m else math.nan for m in members])
    return codes, means


@given(weights)
def test_equal_population_at_every_k_is_quantizing_at_that_k_alone(values: np.ndarray) -> None:
    """The store keeps six bits once; every lower version must be what the paper would have stored."""
    fitted = fit(values, "equal-population")
    for k in range(1, PLANES + 1):
        codes, means = alone(values, fitted.is_outlier, k)
        kept = ~fitted.is_outlier
        np.testing.assert_array_equal(fitted.codes[kept] >> (PLANES - k), codes[kept])
        filled = ~np.isnan(means)
        # Prefix sums against math.fsum differ by 1e-15; bfloat16 keeps 8 bits, so a tie may flip one ulp.
        np.testing.assert_allclose(fitted.code.codebooks[k][filled], means[filled], rtol=2**-8, atol=1e-12)


def test_equal_population_centroids_are_the_rounded_means_of_a_large_layer() -> None:
    """On real sizes the codebook is exactly the bfloat16 of the arithmetic mean of each cluster."""
    values = gaussian(50_000)
    fitted = fit(values, "equal-population")
    for k in range(1, PLANES + 1):
        _, means = alone(values, fitted.is_outlier, k)
        np.testing.assert_array_equal(fitted.code.codebooks[k], to_bfloat16(means))


@given(st.integers(0, 10_000), st.integers(1, 5))
def test_edges_of_fewer_bits_are_a_subset(n: int, k: int) -> None:
    """This is why one set of codes serves all bitwidths."""
    np.testing.assert_array_equal(
        equal_population_edges(n)[:: 1 << (PLANES - k)], equal_population_edges(n, bits=k)
    )


@given(weights, st.sampled_from(QUANTIZERS))
def test_codes_order_as_the_weights_do(values: np.ndarray, quantizer: Quantizer) -> None:
    """A prefix of a code can name a contiguous cell only if codes ascend with values."""
    fitted = fit(values, quantizer)
    kept = np.flatnonzero(~fitted.is_outlier)
    order = kept[np.argsort(values[kept], kind="stable")]
    assert (np.diff(fitted.codes[order].astype(int)) >= 0).all()
    for k, codebook in fitted.code.codebooks.items():
        assert codebook.shape == (1 << k,)
        assert (np.diff(codebook) >= 0).all()
        assert np.isfinite(codebook).all()


@given(weights, st.sampled_from(QUANTIZERS))
def test_centroids_are_bfloat16(values: np.ndarray, quantizer: Quantizer) -> None:
    """Kernels look centroids up as two bytes; a third would be lost silently."""
    for codebook in fit(values, quantizer).code.codebooks.values():
        assert (codebook.view(np.uint32) & 0xFFFF == 0).all()


def test_outliers_are_those_whose_log_density_is_below_minus_four() -> None:
    """The paper's rule, against the normal's log density written out."""
    values = np.concatenate([gaussian(20_000), [0.3, -0.2]]).astype(np.float32)
    wide = values.astype(np.float64)
    log_density = -0.5 * math.log(2 * math.pi * wide.var()) - (wide - wide.mean()) ** 2 / (2 * wide.var())
    np.testing.assert_array_equal(fit(values).is_outlier, log_density < -4)
    assert 2 <= np.count_nonzero(log_density < -4) < 40


def test_outlier_distance_knows_the_extremes() -> None:
    """Log density depends on the unit: no spread means no outlier, a flat normal makes all unlikely."""
    assert outlier_distance(0.0) == math.inf
    assert outlier_distance(0.04) == pytest.approx(0.04 * 3.5496, rel=1e-4)
    assert outlier_distance(22.0) == 0.0
    assert fit(np.full(100, 0.5, np.float32)).is_outlier.sum() == 0
    assert fit(gaussian(1000, scale=50.0)).is_outlier.all()


@given(st.integers(64, 4000), st.integers(0, 2**32 - 1))
def test_lloyd_ends_at_cells_that_are_nearest_to_their_means(n: int, seed: int) -> None:
    """Lloyd's condition: every weight lies in the cell whose mean is nearest, or the rounds did nothing."""
    order = np.sort(gaussian(n, seed)).astype(np.float64)
    edges = lloyd_edges(order)
    assert (np.diff(edges) >= 0).all()
    assert (edges[0], edges[-1]) == (0, n)
    filled = np.diff(edges) > 0
    means = np.array([order[a:b].mean() for a, b in pairwise(edges) if b > a])
    own = np.repeat(means, np.diff(edges)[filled])
    best = np.abs(order[:, None] - means).min(axis=1)
    gap = np.square(order - own).sum() - np.square(best).sum()
    assert gap <= 1e-6 * np.square(order - own).sum() + 1e-20


@pytest.mark.parametrize("k", range(1, PLANES + 1))
def test_as_many_values_as_levels_are_told_apart_at_every_k(k: int) -> None:
    """Binary or ternary weights must not share a cell while others stand empty."""
    values = np.repeat(np.linspace(-0.125, 0.125, 1 << k, dtype=np.float32), 9)
    fitted = fit(values, "lloyd")
    decoded = fitted.code.codebooks[k][fitted.codes >> (PLANES - k)]
    np.testing.assert_array_equal(decoded[~fitted.is_outlier], to_bfloat16(values)[~fitted.is_outlier])


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65])
def test_few_distinct_weights_are_kept_to_bfloat16(n: int) -> None:
    """With a level for every weight, all that is lost is the rounding of centroids."""
    values = np.linspace(-0.1, 0.1, n, dtype=np.float32)
    fitted = fit(values, "lloyd")
    decoded = fitted.code.codebooks[PLANES][fitted.codes]
    worst = 2.0**-8 * 0.1 if n <= 64 else 0.2 / 64
    assert np.abs(decoded - values).max() <= worst


def test_lloyd_reproduces_the_designs_table(minilm: Path) -> None:
    """Design.md's figures: a MiniLM layer's first FFN matrix, no outliers set aside, error over variance."""
    values = open_checkpoint(minilm).tensor("layers.0.up.weight").ravel()
    order = np.sort(values).astype(np.float64)
    expected = {
        "lloyd": ((2, 0.153), (3, 0.049), (4, 0.0148), (5, 0.0043), (6, 0.0011)),
        "equal": ((2, 0.175), (3, 0.080), (4, 0.0387), (5, 0.0199), (6, 0.0110)),
    }
    edges = {"lloyd": lloyd_edges(order), "equal": equal_population_edges(order.size)}
    for name, rows in expected.items():
        for k, figure in rows:
            cells = edges[name][:: 1 << (PLANES - k)]
            sums, counts = np.add.reduceat(order, cells[:-1]), np.diff(cells)
            error = (order @ order - (sums**2 / counts).sum()) / order.size / order.var()
            assert error == pytest.approx(figure, rel=0.06), (name, k)


def test_lloyd_errs_less_than_equal_population_at_every_k(minilm: Path) -> None:
    """The reason it is the default: on a real layer, about six times less error at 6 bits."""
    checkpoint = open_checkpoint(minilm)
    values = np.concatenate([checkpoint.tensor(f"layers.2.{n}.weight").ravel() for n in ("query", "up")])
    ours = relative_errors(values, fit(values, "lloyd"))
    paper = relative_errors(values, fit(values, "equal-population"))
    assert all(a < b for a, b in zip(ours[1:], paper[1:], strict=True))
    assert ours[5] < paper[5] / 5
    assert list(ours) == sorted(ours, reverse=True)


def test_rounding_centroids_to_bfloat16_adds_less_than_a_percent_of_the_error() -> None:
    """Two bytes a centroid are free only as long as this holds."""
    values = gaussian(200_000)
    fitted = fit(values)
    order = np.sort(values[~fitted.is_outlier]).astype(np.float64)
    edges = lloyd_edges(order)
    sums, counts = np.add.reduceat(order, edges[:-1]), np.diff(edges)
    exact = (order @ order - (sums**2 / counts).sum()) / (values.size * values.var(dtype=np.float64))
    assert relative_errors(values, fitted)[5] < 1.01 * exact


def test_refuses_weights_that_are_not_finite() -> None:
    """A NaN would give a codebook of NaN and an answer without error."""
    for bad in (np.nan, np.inf):
        with pytest.raises(StoreError, match="finite"):
            fit(np.array([0.0, bad], np.float32))
        with pytest.raises(StoreError, match="finite"):
            quantize_table(np.array([[0.0, bad]], np.float32))
    with pytest.raises(StoreError, match="at least one"):
        fit(np.zeros(0, np.float32))


@given(
    nps.arrays(
        np.float32,
        st.tuples(st.integers(1, 40), st.integers(1, 19)),
        elements=st.sampled_from([x / 64 for x in range(-32, 32)]),
    )
)
def test_a_table_of_few_values_is_kept_exactly(table: np.ndarray) -> None:
    """Quantizing what already is quantized must change nothing, at any width."""
    np.testing.assert_array_equal(quantize_table(table).decode_all(), table)


def test_a_table_of_many_values_is_lloyd_quantized() -> None:
    """L optimal levels leave (sqrt(3) pi / 2) / L^2 of a normal's variance (Panter and Dite 1951)."""
    table = gaussian(60 * 1000).reshape(-1, 60)
    error = np.square(quantize_table(table).decode_all() - table).mean() / table.var()
    assert error == pytest.approx(math.sqrt(3) * math.pi / 2 / 64**2, rel=0.05)
