"""Choose the requested partition: the planner's, one mode's best, equal shares, or CoEdge's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Literal, assert_never

import numpy as np

from pliant.cluster.lead.choose_bits import Bits, choose_bits
from pliant.cluster.lead.margin import Margins
from pliant.errors import BudgetError, InputError
from pliant.ir.bitwidths import WeightFormat, check_weights
from pliant.ir.capability import Capability, Links
from pliant.ir.partition import DeviceGrid, Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.baselines import coedge
from pliant.plan.partition.partition_cost import to_partition
from pliant.plan.partition.partitioner import Gains, choose_partition, solve
from pliant.plan.partition.problem import ITEMSIZE, PartitionProblem, pose
from pliant.plan.split.activation_bytes import activation_bytes, memory_bytes
from pliant.quantities import format_bytes

_TRIES = 5
"""Searches at most, all but the first with memory set aside for activations."""

PartitionChooser = Callable[[EncoderSpec, int, Mapping[str, Capability], Links, str], Partition]
"""Returns the partition of so many tokens over these devices, led by the named primary."""

ModeOption = Literal["auto", "ws", "1d", "2d"]
"""One of Hepti's modes, or the best for the devices."""
ShareRule = Literal["best", "equal", "coedge"]
"""The fastest shares found, equal shares, or CoEdge's rule."""


def make_chooser(
    mode: ModeOption = "auto",
    shares: ShareRule = "best",
    least_gain: Callable[[], Gains] | None = None,
    weights: WeightFormat = "fp32",
) -> PartitionChooser:
    """Return the function that chooses partitions. Raises InputError for CoEdge's shares in a tiled mode.

    In mode "auto" a split must save its `least_gain` of the best single device's time; this is read at each
    choice, and defaults to the saving required before any run (`margin.PRIOR`). Matrices are float32, or in
    codes of 1 to 6 bits; with `weights` "auto" they are float32 if that fits into the devices' memory, else
    in the most bits that fit, with one more for the most important layers.
    """
    if shares == "coedge" and mode not in ("auto", "ws"):
        raise InputError(f"CoEdge's shares are weight-stationary; in mode {mode!r} take the best.")
    check_weights(weights, has_bytes=False)
    gains = least_gain or (lambda: Margins().least_gain)

    def choose(
        spec: EncoderSpec, tokens: int, capabilities: Mapping[str, Capability], links: Links, primary: str
    ) -> Partition:
        def solved(bits: Bits) -> Partition:
            if shares == "equal":
                names = [primary, *sorted(name for name in capabilities if name != primary)]
                return replace(_equal("ws" if mode == "auto" else mode, spec, tokens, names), bits=bits)
            if shares == "coedge":
                return coedge(pose(spec, tokens, capabilities, links, primary, bits)).partition

            def fastest(devices: Mapping[str, Capability]) -> Partition:
                if mode != "auto":
                    return _fixed(mode, pose(spec, tokens, devices, links, primary, bits), devices)
                return choose_partition(
                    spec, tokens, devices, links, primary, bits=bits, rule="judged", least_gain=gains()
                ).partition

            return within_memory(spec, tokens, capabilities, fastest)

        return choose_bits(spec, capabilities, weights, solved)

    return choose


def within_memory(
    spec: EncoderSpec,
    tokens: int,
    capabilities: Mapping[str, Capability],
    solve: Callable[[Mapping[str, Capability]], Partition],
) -> Partition:
    """Return the partition that `solve` finds with enough memory left on each device for its activations.

    `solve` counts weights alone. If a device has no memory left for the activations of its share, they are
    set aside and `solve` is called again, a few times. Raises BudgetError.
    """
    least = 2 * ITEMSIZE * tokens * spec.hidden  # of every device that takes part
    aside, rooms = dict.fromkeys(capabilities, least), capabilities
    for _ in range(_TRIES):
        try:
            partition = solve(rooms)
        except BudgetError as error:
            if rooms is capabilities:
                raise
            raise BudgetError(_no_room(tokens, capabilities)) from error
        need, used = memory_bytes(spec, partition), activation_bytes(spec, partition)
        if all(n <= capabilities[name].free_bytes for name, n in need.items()):
            return partition
        aside = {name: max(aside[name], used[name]) for name in aside}
        rooms = {n: replace(c, free_bytes=max(c.free_bytes - aside[n], 0)) for n, c in capabilities.items()}
    raise BudgetError(_no_room(tokens, capabilities))


def _no_room(tokens: int, capabilities: Mapping[str, Capability]) -> str:
    free = ", ".join(f"{n} ({format_bytes(c.free_bytes)})" for n, c in sorted(capabilities.items()))
    return (
        f"no split of the layers' weights, with the activations of {tokens} rows, was found for the free "
        f"memory of {free}: give a shorter input, free some memory, or add a device."
    )


def _fixed(mode: Mode, problem: PartitionProblem, capabilities: Mapping[str, Capability]) -> Partition:
    plan, seconds = solve(problem, mode)
    if not np.isfinite(seconds):
        free = ", ".join(f"{n} ({format_bytes(c.free_bytes)})" for n, c in sorted(capabilities.items()))
        raise BudgetError(
            f"no split of mode {mode} fits in the free memory of {free}: free some, or add one."
        )
    return to_partition(problem, plan)


def _equal(mode: Mode, spec: EncoderSpec, tokens: int, names: Sequence[str]) -> Partition:
    """Return equal shares for each of `names`, the primary first."""
    heads, rows = split_evenly(spec.n_heads, len(names)), split_evenly(tokens, len(names))
    columns = [0] * len(names) if mode == "ws" else split_evenly(spec.ffn, len(names))
    shares = tuple(Share(*one) for one in zip(names, heads, rows, columns, strict=True))
    match mode:
        case "ws" | "1d":
            return Partition(mode, names[0], shares, tokens)
        case "2d":
            return Partition(mode, names[0], shares, tokens, _grid(spec, names))
        case _:
            assert_never(mode)


def split_evenly(total: int, parts: int) -> list[int]:
    """Return integers with this sum that differ by at most 1."""
    if parts < 1:
        raise InputError("nothing can be shared out among nobody.")
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _grid(spec: EncoderSpec, names: Sequence[str]) -> DeviceGrid:
    """Return a grid as close to a square as the number of devices allows."""
    n = len(names)
    n_groups = max(g for g in range(1, isqrt(n) + 1) if n % g == 0)
    width = n // n_groups
    groups = tuple(tuple(names[i : i + width]) for i in range(0, n, width))
    return DeviceGrid(
        groups, tuple(split_evenly(spec.inner, width)), tuple(split_evenly(spec.inner, n_groups))
    )
