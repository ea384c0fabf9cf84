"""The accuracy of a whole model in the bits of its layers, against the table itself and a line between."""

import numpy as np
import pytest

from pliant.ir.bitwidths import FULL_BITS
from pliant.ir.partition import Partition, Share
from pliant.plan.submodel.mixed_bits_accuracy import mixed_bits_accuracy
from pliant.plan.submodel.plan_options import OURS
from pliant.store.manifest import AccuracyEntry, AccuracyTable

N, M = 3, 4
MEASURED = {2: 0.61, 3: 0.79, 6: 0.9, FULL_BITS: 0.91}
EQUAL = ((1.0,) * M,) * N


def _table(measured: dict[int, float], n: int = N, m: int = M) -> AccuracyTable:
    """Without folds, and of one likelihood, scores are what was measured."""
    return AccuracyTable(1000, tuple(AccuracyEntry(n, m, k, a, -0.5) for k, a in measured.items()))


def _layers(*bits: int) -> list[Partition]:
    """A plan of all layers; none in float32."""
    return [Partition("ws", "a", (Share("a", M, 8),), 8, bits=bits)] * N


@pytest.mark.parametrize("bits", [2, 3, 6])
def test_equal_bits_have_what_was_measured(bits: int) -> None:
    """Codes of a plan, whatever its devices; float32 layers are the model at its best."""
    known = mixed_bits_accuracy(_table(MEASURED), EQUAL, FULL_BITS)
    assert known.at(_layers(bits, bits, bits)) == pytest.approx(MEASURED[bits])
    assert known.at(_layers()) == pytest.approx(MEASURED[FULL_BITS])


def test_float32_layers_of_a_store_without_full_fidelity_are_its_highest_bits() -> None:
    """Nothing better is in it."""
    known = mixed_bits_accuracy(_table(MEASURED), EQUAL, 3)
    assert known.at(_layers()) == pytest.approx(MEASURED[3])


def test_mixed_bits_lie_between_by_the_error_that_they_leave() -> None:
    """Linear in the kept share of the weights' variance, each layer by its importance."""
    known = mixed_bits_accuracy(_table(MEASURED), EQUAL, FULL_BITS)
    error = (2 * OURS.errors[2] + OURS.errors[3]) / 3
    wanted = np.interp(1 - error, [1 - OURS.errors[2], 1 - OURS.errors[3]], [MEASURED[2], MEASURED[3]])
    assert known.at(_layers(2, 3, 2)) == pytest.approx(float(wanted))
    first = ((5.0,) * M, (1.0,) * M, (1.0,) * M)
    apart = mixed_bits_accuracy(_table(MEASURED), first, FULL_BITS)
    best, worst = apart.at(_layers(3, 2, 2)), apart.at(_layers(2, 2, 3))
    assert best is not None
    assert worst is not None
    assert best > wanted > worst


def test_layers_of_several_plans_count_by_the_plan_that_each_ran_by() -> None:
    """A run may change its plan between layers."""
    known = mixed_bits_accuracy(_table(MEASURED), EQUAL, FULL_BITS)
    ran = [_layers(2, 2, 2)[0], _layers(3, 3, 3)[0], _layers(2, 2, 2)[0]]
    assert known.at(ran) == known.at(_layers(2, 3, 2))


def test_of_other_submodels_nothing_is_concluded() -> None:
    """A cluster runs all layers and slices."""
    assert mixed_bits_accuracy(_table(MEASURED, n=2), EQUAL, FULL_BITS).at(_layers()) is None
