"""The results of a simulated fleet's requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float64, Int64

Row = tuple[int, float, float, float, int, str | None]
"""Number, arrival time, seconds, accuracy, index of the answering node and name of its endpoint."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """The result of each request: seconds (inf if it was refused), accuracy, index of the node and endpoint.

    `at_s` is the arrival time, `number` the index in the fleet's requests; rows are ordered by end time.
    `wall_s` is real time; `n_doubled` counts started hedges. Machines computed for `work_s` seconds, of which
    `unused_s` were for hedged requests that another endpoint answered.
    """

    number: Int64[np.ndarray, " m"]
    at_s: Float64[np.ndarray, " m"]
    seconds: Float64[np.ndarray, " m"]
    accuracy: Float64[np.ndarray, " m"]
    by: Int64[np.ndarray, " m"]
    endpoint: tuple[str | None, ...]
    n_pings: int
    n_broadcasts: int
    n_doubled: int
    work_s: float
    unused_s: float
    wall_s: float


def run_of(
    rows: Sequence[Row], counts: tuple[int, int, int], work: tuple[float, float], wall_s: float
) -> FleetRun:
    """The results of `rows`; `counts` are pings, broadcasts and hedges, `work` are seconds of computing."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    number, by = (np.array(columns[i], np.int64) for i in (0, 4))
    at_s, seconds, accuracy = (np.array(columns[i], np.float64) for i in (1, 2, 3))
    return FleetRun(number, at_s, seconds, accuracy, by, tuple(columns[5]), *counts, *work, wall_s)
