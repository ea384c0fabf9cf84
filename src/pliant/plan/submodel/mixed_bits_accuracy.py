"""Expected accuracy of a model with the bits of each layer, as a cluster keeps them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pliant.arrays import Float
from pliant.ir.partition import Partition
from pliant.models.spec import picked_layers
from pliant.plan.submodel.accuracy import AccuracyCurves, accuracy_curves, expected_grid
from pliant.plan.submodel.io_plan import fidelity, importance_weights
from pliant.plan.submodel.plan_options import OURS
from pliant.store.manifest import AccuracyTable


@dataclass(frozen=True, slots=True)
class MixedBitsAccuracy:
    """The accuracy of a model whose submodels were measured; float32 layers count as `full_bits`."""

    known: AccuracyCurves
    weights: Float[np.ndarray, "layers slices"]
    full_bits: int

    def at(self, layers: Sequence[Partition]) -> float | None:
        """Return the expected fraction of right answers if each layer runs by a partition, with its bits.

        Determined as for a submodel in mixed bits (`SubmodelPlanner.expected_accuracy`), from its layers and
        heads; None if it was not measured.
        """
        bits = [one.bits[i] if one.bits else self.full_bits for i, one in enumerate(layers)]
        return self._at(bits, layers[0].n_heads)

    @property
    def sizes(self) -> Mapping[tuple[int, int], float]:
        """The measured submodels, by layers and heads, and their accuracy in all bits."""
        every = {(n, m): self._at([self.full_bits] * n, m) for n, m in self.known.points}
        return {size: accuracy for size, accuracy in every.items() if accuracy is not None}

    def _at(self, bits: Sequence[int], m: int) -> float | None:
        n = len(bits)
        weights = self.weights[list(picked_layers(len(self.weights), n)), :m]
        return self.known.at(n, m, fidelity([[k] * m for k in bits], weights, OURS.errors))


def mixed_bits_accuracy(
    table: AccuracyTable, importance: Sequence[Sequence[float]], full_bits: int
) -> MixedBitsAccuracy:
    """Accuracy in `table` for all layers and slices; `importance`: a row per layer, a number per slice."""
    weights = importance_weights(np.asarray(importance, np.float64))
    return MixedBitsAccuracy(accuracy_curves(expected_grid(table), OURS.errors), weights, full_bits)
