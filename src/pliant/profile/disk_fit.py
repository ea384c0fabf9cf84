"""Fit a line to read times: latency and bandwidth."""

from collections.abc import Mapping, Sequence

import numpy as np

from pliant.ir.link import Link
from pliant.ir.times.timing import Timing

# Upper limit for the bandwidth: the fitted line is flat if all reads took equally long.
_FASTEST_BPS = 1e11


def timing(samples_s: Sequence[float]) -> Timing:
    """Median and 95th percentile of at least one sample."""
    median_s, p95_s = np.quantile(np.asarray(samples_s), (0.5, 0.95))
    return Timing(float(median_s), max(float(median_s), float(p95_s)))


def fit_disks(reads: Mapping[int, Sequence[float]]) -> tuple[Link, Link]:
    """Return the lines through the medians and the 95th percentiles of reads, {bytes: seconds of each}.

    The second is nowhere below the first.
    """
    timings = {n: timing(samples) for n, samples in reads.items()}
    median = fit_disk({n: t.median_s for n, t in timings.items()})
    p95 = fit_disk({n: t.p95_s for n, t in timings.items()})
    return median, Link(max(median.latency_s, p95.latency_s), min(median.bandwidth_Bps, p95.bandwidth_Bps))


def fit_disk(points: Mapping[int, float]) -> Link:
    """Fit latency + bytes / bandwidth to {bytes: seconds}, by least squares of the relative error.

    The error is relative so that a few large reads do not determine the cost of a small one. Neither latency
    nor the time per byte is negative: if the best line has one, the best line through zero, or the flat one,
    is used.
    """
    n_bytes = np.fromiter(points.keys(), np.float64)
    seconds = np.maximum(np.fromiter(points.values(), np.float64), 1e-9)
    sloped = float(np.sum(n_bytes / seconds) / np.sum((n_bytes / seconds) ** 2))
    if len(points) < 2:
        return Link(0.0, min(1 / sloped, _FASTEST_BPS))
    rows = np.stack([1 / seconds, n_bytes / seconds], axis=1)
    latency_s, per_byte_s = np.linalg.lstsq(rows, np.ones(len(points)), rcond=None)[0].tolist()
    if latency_s < 0:
        return Link(0.0, min(1 / sloped, _FASTEST_BPS))
    if per_byte_s < 1 / _FASTEST_BPS:
        flat_s = float(np.sum(1 / seconds) / np.sum(1 / seconds**2))
        return Link(flat_s, _FASTEST_BPS)
    return Link(latency_s, 1 / per_byte_s)
