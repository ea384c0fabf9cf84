"""Decide whether the running plan still fits what is observed, and whether another pays. Pure.

A plan is made of a picture of devices and links (Hepti 4.1, Table 1a). Run time redraws the picture; where
the two differ by more than a threshold, or in who is there or has memory, the partition is solved again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil

from pliant.ir.topology import Capability, Links

THRESHOLD = 0.12
"""Drift that is worth a new solution: between noise (a few percent) and what a user would feel."""
ALIKE = 0.02
"""Drift that nothing is reckoned anew for."""
LEAST_GAIN = 0.1
"""What another plan has to save of a layer: it loads weights and compiles stages beside the run, and what it
promises is no more exact."""
GROWTH = 0.25
"""Memory gained that is worth a new solution, where there was too little for whole layers."""
WEIGHT = 0.3
"""Of what was seen once and not before: it may be a stall."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Devices by name and the links between them, as known at one time."""

    capabilities: Mapping[str, Capability]
    links: Links


def believed(ratio: float, before: float = 1.0) -> float:
    """What to take as true of `ratio`, seen over expected: all that was seen twice, and WEIGHT of the rest.

    `before` is what the last time showed, over what is expected now.
    """
    twice = min(ratio, before) if min(ratio, before) > 1 else max(ratio, before)
    twice = twice if (ratio - 1) * (before - 1) > 0 else 1.0
    return twice * (1 - WEIGHT + WEIGHT * ratio / twice)


def drift(planned: Picture, now: Picture, devices: Collection[str]) -> float:
    """How far the two pictures of `devices` are apart: 0.2 where something is 1.2 times slower, or faster."""
    ratios = [1.0]
    for name in devices:
        before, after = planned.capabilities[name], now.capabilities[name]
        kinds = {d.kind for d in (*before.drifts, *after.drifts)}
        ratios += [after.drift(kind) / before.drift(kind) for kind in kinds]
    for src in devices:
        for dst in devices:
            if src != dst:
                was, is_now = planned.links.link(src, dst), now.links.link(src, dst)
                ratios.append(was.bandwidth_Bps / is_now.bandwidth_Bps)
    return max(max(ratio, 1 / ratio) for ratio in ratios) - 1


def is_alike(one: Picture, other: Picture) -> bool:
    """Whether two pictures are of the same devices, and nothing in them differs by more than ALIKE."""
    devices = one.capabilities.keys()
    return devices == other.capabilities.keys() and drift(one, other, devices) <= ALIKE


def too_large(need: Mapping[str, int], now: Picture) -> tuple[str, ...]:
    """Devices whose weights do not fit in the memory that is free for models; who has left has none."""
    devices = now.capabilities
    return tuple(name for name, n in need.items() if name in devices and n > devices[name].free_bytes)


def regained(planned: Picture, now: Picture, whole_bytes: int) -> tuple[str, ...]:
    """Devices that had less than `whole_bytes`, for all layers, when it was planned, and have more now."""
    found = []
    for name, device in now.capabilities.items():
        before = planned.capabilities.get(name, device).free_bytes
        enough = min(whole_bytes, (1 + GROWTH) * before)
        if before < whole_bytes and device.free_bytes >= enough:
            found.append(name)
    return tuple(found)


def recovered(planned: Picture, now: Picture, participants: Collection[str]) -> tuple[str, ...]:
    """Who has no part in a plan, and is, or is reached, quicker than planned by more than THRESHOLD."""
    both = planned.capabilities.keys() & now.capabilities.keys()
    found = []
    for name in sorted(both - set(participants)):
        before, after = planned.capabilities[name], now.capabilities[name]
        gains = [before.drift(one.kind) / after.drift(one.kind) for one in before.drifts]
        gains += [
            now.links.link(*ends).bandwidth_Bps / planned.links.link(*ends).bandwidth_Bps
            for other in both - {name}
            for ends in ((name, other), (other, name))
        ]
        if max(gains, default=1.0) > 1 + THRESHOLD:
            found.append(name)
    return tuple(found)


def reason_to_solve(
    planned: Picture,
    now: Picture,
    participants: Collection[str],
    need: Mapping[str, int],
    whole_bytes: int = 0,
    layer_s: Callable[[Picture], float] | None = None,
) -> str | None:
    """Why the partition should be solved again, in words; None where it need not be.

    `need` are the bytes of each device's weights, `whole_bytes` those of all layers: who has that much may
    work weight-stationary. `layer_s` predicts a layer by the plan as it is: what drifted counts where a layer
    feels it.
    """
    joined = now.capabilities.keys() - planned.capabilities.keys()
    left = [name for name in participants if name not in now.capabilities]
    if left:
        return f"{', '.join(sorted(left))} left"
    if joined:
        return f"{', '.join(sorted(joined))} joined"
    tight = too_large({name: need[name] for name in participants}, now)
    if tight:
        return f"memory of {', '.join(tight)} is short"
    back = regained(planned, now, whole_bytes)
    if back:
        return f"memory of {', '.join(back)} is back"
    apart = drift(planned, now, [name for name in planned.capabilities if name in now.capabilities])
    if apart > THRESHOLD and layer_s is not None:
        before_s, now_s = layer_s(planned), layer_s(now)
        apart = max(before_s, now_s) / min(before_s, now_s) - 1
    if apart > THRESHOLD:
        return f"times drifted by {apart:.0%}"
    return None


def is_kept(current_s: float, new_s: float, *, is_home: bool) -> bool:
    """Whether a plan stays from one run to the next, of layers of `current_s`, beside one of `new_s`.

    The other has to save LEAST_GAIN; anything at all where it `is_home`, the primary alone: a split, or
    another device, that turned out slower than that is given up.
    """
    return current_s * (1 if is_home else 1 - LEAST_GAIN) <= new_s


def pays(current_s: float, new_s: float, n_layers: int, load_s: float, switch_s: float) -> bool:
    """Whether `n_layers` more layers, of `current_s` or `new_s` each, end sooner with the new plan.

    A plan that saves less than LEAST_GAIN of a layer does not. Its weights load for `load_s` beside the
    layers that still run by the current plan; the switch itself, at which new members receive the layer's
    input, costs `switch_s`.
    """
    if new_s > (1 - LEAST_GAIN) * current_s:
        return False
    n_left = n_layers - ceil(load_s / current_s)
    return n_left * (current_s - new_s) > switch_s
