"""How accurate the whole model is expected to be in the bits that each layer has, as a cluster keeps them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float
from pliant.ir.partition import Partition
from pliant.plan.submodel.accuracy import Curves, curves, expected_grid
from pliant.plan.submodel.io_plan import fidelity, weights_of
from pliant.plan.submodel.plan_options import OURS
from pliant.store.manifest import AccuracyTable


@dataclass(frozen=True, slots=True)
class WholeAccuracy:
    """Of a model whose submodels were measured; float32 layers are those of `full_bits`."""

    known: Curves
    weights: Float[np.ndarray, "layers slices"]
    full_bits: int

    def at(self, layers: Sequence[Partition]) -> float | None:
        """The fraction of right answers expected where each layer runs by a partition, in that one's bits.

        As a submodel's in mixed bits (`Planner.expected`); None where the whole model was not measured.
        """
        n, m = self.weights.shape
        bits = [one.bits[i] if one.bits else self.full_bits for i, one in enumerate(layers)]
        return self.known.at(n, m, fidelity([[k] * m for k in bits], self.weights, OURS.errors))


def whole_accuracy(
    table: AccuracyTable, importance: Sequence[Sequence[float]], full_bits: int
) -> WholeAccuracy:
    """What `table` says of all layers and slices; `importance` has a row a layer, a number a slice."""
    weights = weights_of(np.asarray(importance, np.float64))
    return WholeAccuracy(curves(expected_grid(table), OURS.errors), weights, full_bits)
