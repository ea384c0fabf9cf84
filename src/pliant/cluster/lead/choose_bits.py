"""Choose the bits per layer of the matrices on a cluster's devices. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pliant.errors import BudgetError, InputError
from pliant.ir.bitwidths import WeightFormat
from pliant.ir.capability import Capability
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes
from pliant.quantities import format_bytes

Bits = tuple[int, ...]
"""Bits of each layer; empty if matrices are float32."""


def choose_bits(
    spec: EncoderSpec,
    capabilities: Mapping[str, Capability],
    weights: WeightFormat,
    solved: Callable[[Bits], Partition],
) -> Partition:
    """Return the partition that `solved` finds for the bits requested by `weights`.

    With "auto", the first that fits: in float32, then with one bit less at a time; layers then get one bit
    more, the most important first, while every device has memory for it. Raises BudgetError if nothing fits,
    InputError for more bits than the model is coded in.
    """
    if weights == "fp32":
        return solved(())
    coded = spec.coded
    if isinstance(weights, int):
        if coded is None or weights > coded.bits:
            raise InputError(_uncoded(spec, f"weights of {weights} bits"))
        return solved((weights,) * spec.n_layers)
    try:
        return _fitting(spec, capabilities, solved(()))
    except BudgetError as error:
        if coded is None:
            raise BudgetError(f"{error} {_uncoded(spec, 'Fewer bits')}") from error
    for bits in range(coded.bits, 0, -1):
        try:
            found = _fitting(spec, capabilities, solved((bits,) * spec.n_layers))
        except BudgetError:
            if bits == 1:
                raise
            continue
        return found if bits == coded.bits else _raised(spec, capabilities, found)
    raise AssertionError(f"{coded} has no bits")


def _fitting(spec: EncoderSpec, capabilities: Mapping[str, Capability], partition: Partition) -> Partition:
    """Return the partition. Raises BudgetError if it does not fit in memory, which not every rule checks."""
    need = memory_bytes(spec, partition)
    short = [name for name in partition.participants if need[name] > capabilities[name].free_bytes]
    if short:
        name = short[0]
        raise BudgetError(
            f"{name} has {format_bytes(capabilities[name].free_bytes)} free, and its share of the weights "
            f"and activations takes {format_bytes(need[name])}: free some, or add a device."
        )
    return partition


def _raised(spec: EncoderSpec, capabilities: Mapping[str, Capability], partition: Partition) -> Partition:
    """Return the same shares with one more bit for as many layers as fit in memory, by importance."""
    assert spec.coded is not None, spec
    importance = spec.coded.importance
    for layer in sorted(range(spec.n_layers), key=lambda i: -importance[i]):
        bits = tuple(k + (i == layer) for i, k in enumerate(partition.bits))
        try:
            partition = _fitting(spec, capabilities, replace(partition, bits=bits))
        except BudgetError:
            break
    return partition


def _uncoded(spec: EncoderSpec, wanted: str) -> str:
    if spec.coded is None:
        return f"{wanted} need a store: pack the model (pliant pack), and give the store to every device."
    return f"{wanted} are more than the {spec.coded.bits} of the store: pack the model with more --bits."
