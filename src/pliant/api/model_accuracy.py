"""The expected accuracy of a whole model for any bits of its layers."""

from pliant.api.model import CheckpointModel, Model, StoreModel
from pliant.api.open_elastic import read_measurements
from pliant.ir.bitwidths import FULL_BITS
from pliant.plan.submodel.mixed_bits_accuracy import MixedBitsAccuracy, mixed_bits_accuracy


def accuracy_of(model: Model) -> MixedBitsAccuracy | None:
    """Return the expected accuracy from the model's table; None if it was not measured.

    Raises StoreError, and InputError for a table that does not fit its model.
    """
    match model:
        case StoreModel(manifest=manifest):
            spec, importance, table = manifest.spec, manifest.importance, manifest.accuracy
            full_bits = max(manifest.bits)
        case CheckpointModel(path=path, spec=spec):
            importance, table = read_measurements(path, spec)
            full_bits = FULL_BITS
        case _:
            return None
    if table is None:
        return None
    return mixed_bits_accuracy(table, importance or ((1.0,) * spec.n_heads,) * spec.n_layers, full_bits)
