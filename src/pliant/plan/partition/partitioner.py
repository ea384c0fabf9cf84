"""Hepti's partitioning engine (4.3): assigns shares to devices.

The program of eq. 1 to 11 over integer heads, rows and columns, searched by `flat_solver` and `grid_solver`.
Every candidate, including every single device, is priced by the same closed form of the real program's steps
(`partition_cost`).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from pliant.errors import BudgetError, InputError
from pliant.ir.capability import Capability, Links
from pliant.ir.partition import Mode, Partition, Share
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.partition.decision import Decision, RunOption
from pliant.plan.partition.flat_solver import solve_flat
from pliant.plan.partition.grid_solver import solve_grid
from pliant.plan.partition.initial_plans import single_device_plans
from pliant.plan.partition.local_search import fastest
from pliant.plan.partition.lower_bound import bound_s
from pliant.plan.partition.partition_cost import (
    FlatMode,
    FlatPlans,
    GridPlans,
    device_weight_bytes,
    seconds,
    to_partition,
)
from pliant.plan.partition.problem import PartitionProblem, pose
from pliant.plan.partition.shortlist import shortlist
from pliant.quantities import format_bytes

Rule = Literal["paper", "cost", "judged"]
MIN_GRID_DEVICES = 16
"""Number of devices from which the paper prefers the 2D-tiled mode (4.3)."""
TILED: tuple[FlatMode, Mode] = ("1d", "2d")
Gains = Mapping[Mode | Literal["alone"], float]
"""Minimum saving of a split, by mode, over the best single device, and of that one over the primary."""


def choose_partition(
    spec: EncoderSpec,
    tokens: int,
    capabilities: Mapping[str, Capability],
    links: Links,
    primary: str,
    *,
    bits: tuple[int, ...] = (),
    rule: Rule = "paper",
    bound_time_s: float | None = None,
    least_gain: Gains | None = None,
) -> Decision:
    """Return the fastest partition found of `tokens` rows; `primary` holds input and answer.

    Layers are in codes of `bits`, one number per layer, or in float32 if `bits` is empty.

    A deadline (D) does not change the plan; `ClusterSession.plan_at` judges it. `rule` "paper" takes the
    weight-stationary mode if every device has memory for all weights, else the 1D-tiled one, and from 16
    devices on the 2D-tiled one; if no plan of that mode fits, the other tiled mode is tried. "judged" also
    tries WS, over the devices with enough memory, and "cost" all modes: the fastest is taken. Raises
    BudgetError if the weights fit in no way, InputError and ProfileError if the devices are not described.

    With `bound_time_s`, the decision includes a lower bound for partitions of the same mode over these
    (shortlisted) devices: a linear relaxation, tightened for that time. A split that saves less than its
    `least_gain` (default 0) is not taken, because a single device has no waits and the primary needs no link.
    Between modes, a split's time counts as longer by the same fraction. In the 2D-tiled mode the shares are
    in the order of the grid, else in that of the devices.
    """
    if primary not in capabilities:
        raise InputError(f"the primary {primary!r} is none of the devices {sorted(capabilities)}.")
    listed = shortlist(spec, tokens, capabilities, links, primary, bits=bits)
    p = pose(spec, tokens, listed, links, primary, bits)
    modes, reason = _modes(p, rule, len(capabilities))
    tried = {mode: solve(p, mode) for mode in modes}
    if tried and not np.isfinite(min(s for _, s in tried.values())):
        tried |= {mode: solve(p, mode) for mode in TILED if mode not in tried}
    plan: FlatPlans | GridPlans
    gains = least_gain or {}
    plan, plan_s = _best_single_device(p, gains.get("alone", 0.0))
    counted_s = {mode: s / (1 - gains.get(mode, 0.0)) for mode, (_, s) in tried.items()}
    mode = min(counted_s, key=lambda one: counted_s[one], default=None)
    if mode is not None and counted_s[mode] < plan_s:
        plan, plan_s = tried[mode]
    if not np.isfinite(plan_s):
        raise BudgetError(_too_little_memory(p))
    partition = _with_all_devices(to_partition(p, plan), capabilities)
    alone_s = _single_device_s(p)
    considered = [RunOption(f"{name} alone", s) for name, s in alone_s.items()]
    considered += [
        RunOption(mode, s, to_partition(p, one) if np.isfinite(s) else None)
        for mode, (one, s) in tried.items()
    ]
    return Decision(
        partition=partition,
        seconds=plan_s,
        weight_bytes=dict.fromkeys(capabilities, 0) | _weights(p, plan),
        considered=tuple(considered),
        reasons=(reason, *_reasons(partition, plan_s, alone_s)),
        bound_s=None if bound_time_s is None else bound_s(p, partition.mode, bound_time_s),
    )


def _best_single_device(p: PartitionProblem, least_gain: float) -> tuple[FlatPlans, float]:
    """Return the fastest single device, or the primary if that device saves too little."""
    plans = single_device_plans(p, "ws")
    plan, plan_s = fastest(p, plans)
    home, home_s = fastest(p, plans.take(p.primary))
    return (home, home_s) if home_s * (1 - least_gain) <= plan_s else (plan, plan_s)


def solve(p: PartitionProblem, mode: Mode) -> tuple[FlatPlans | GridPlans, float]:
    """Return the fastest plan found in one mode; infinite seconds if no plan fits in memory."""
    return solve_grid(p) if mode == "2d" else solve_flat(p, mode)


def _with_all_devices(partition: Partition, devices: Collection[str]) -> Partition:
    """Add devices that were not shortlisted, with empty shares."""
    shares = {share.device: share for share in partition.shares}
    order = devices if partition.grid is None else [*shares, *(d for d in devices if d not in shares)]
    return replace(partition, shares=tuple(shares.get(name, Share(name)) for name in order))


def _modes(p: PartitionProblem, rule: Rule, n_devices: int) -> tuple[tuple[Mode, ...], str]:
    s = p.sizes
    whole = s.ws_row + s.ws_head.fixed + s.ws_head.each * s.n_heads
    short = [name for name, free in zip(p.names, p.memory, strict=True) if free < whole]
    if p.n == 1:
        return (), "There is but one device."
    if rule == "cost":
        return ("ws", *TILED), "All modes were tried, and the cost model judged."
    if not short:
        return ("ws",), f"Weight-stationary: every device has memory for all weights ({format_bytes(whole)})."
    cannot = f"{_join_names(short)} cannot hold all weights ({format_bytes(whole)})"
    mode: Mode = "1d" if n_devices < MIN_GRID_DEVICES else "2d"
    many = "" if n_devices < MIN_GRID_DEVICES else f", and there are {MIN_GRID_DEVICES} devices or more"
    said = f"{mode.upper()}-tiled: {cannot}{many}."
    if rule == "paper":
        return (mode,), said
    return ("ws", mode), f"The cost model judged between WS where memory allows it and the rule's {said}"


def _single_device_s(p: PartitionProblem) -> dict[str, float]:
    times = seconds(p, single_device_plans(p, "ws"))
    return {name: float(t) for name, t in zip(p.names, times, strict=True)}


def _weights(p: PartitionProblem, plan: FlatPlans | GridPlans) -> dict[str, int]:
    return {name: round(n) for name, n in zip(p.names, device_weight_bytes(p, plan)[0], strict=True)}


def _reasons(partition: Partition, plan_s: float, alone_s: Mapping[str, float]) -> list[str]:
    quickest = min(alone_s, key=lambda name: alone_s[name])
    said = []
    if np.isfinite(alone_s[quickest]):
        gain = 100 * (1 - plan_s / alone_s[quickest])
        said.append(
            f"{plan_s * 1e3:.0f} ms on {len(partition.participants)} of {len(partition.devices)} devices; "
            f"the best alone, {quickest}, takes {alone_s[quickest] * 1e3:.0f} ms ({gain:.0f} % saved)."
        )
    left = [s.device for s in partition.shares if s.is_empty]
    if left:
        said.append(f"{_join_names(left)} would not make it quicker and take no part.")
    return said


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _too_little_memory(p: PartitionProblem) -> str:
    s = p.sizes
    whole = s.tiled_head.each * s.n_heads + s.tiled_column * s.n_columns
    coded = f" in {_bits_text(s.bits)}" if s.bits else ""
    free, most = format_bytes(p.memory.sum()), format_bytes(p.memory.max())
    has = f"the {p.n} devices have {free} free in all, at most {most} on one"
    return (
        f"the layers' weights take {format_bytes(whole)}{coded}, and "
        f"{has if p.n > 1 else f'the only device has {free} free'}: give more (`--memory`), or add a device "
        "(`pliant worker --join HOST:PORT`)."
    )


def _bits_text(bits: tuple[int, ...]) -> str:
    """Return `1 bit`, `4 bits`, or `3 to 4 bits`."""
    few, many = min(bits), max(bits)
    return f"{few} to {many} bits" if few < many else f"{few} bit{'s' * (few > 1)}"
