"""What came of a simulated fleet's requests."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float64, Int64

Row = tuple[int, float, float, float, int, str | None]
"""Number, when it was asked, seconds, accuracy, index of the node and name of the endpoint that answered."""


@dataclass(frozen=True, slots=True)
class FleetRun:
    """How each request ended: seconds (inf where it was refused), accuracy, index of the node and endpoint.

    `at_s` is when it was asked, `number` which one of the fleet's it was; rows are in the order of their
    ends. `wall_s` is real time; `n_doubled` counts hedges that were begun.
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
    wall_s: float


def run_of(rows: Sequence[Row], counts: tuple[int, int, int], wall_s: float) -> FleetRun:
    """`counts` are pings, broadcasts and hedges."""
    columns = list(zip(*rows, strict=True)) or [()] * 6
    number, by = (np.array(columns[i], np.int64) for i in (0, 4))
    at_s, seconds, accuracy = (np.array(columns[i], np.float64) for i in (1, 2, 3))
    return FleetRun(number, at_s, seconds, accuracy, by, tuple(columns[5]), *counts, wall_s)
