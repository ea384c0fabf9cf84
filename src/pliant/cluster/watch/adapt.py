"""Decide whether the running plan still fits the observations, and whether another plan pays. Pure.

A plan is based on a topology of devices and links (Hepti 4.1, Table 1a). Runs update the topology; if the
two differ by more than a threshold, or in members or available memory, the partition is solved again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from operator import attrgetter

from pliant.ir.capability import Capability, Links

THRESHOLD = 0.12
"""Drift that triggers a new solution: above noise (a few percent), below what users notice."""
DRIFTED = "times drifted"
ALIKE = 0.02
"""Drift up to which two topologies count as equal and nothing is recomputed."""
LEAST_GAIN = 0.1
"""Minimum saving of another plan per layer: it loads weights and compiles stages during the run, and
predictions are no more exact than this.
"""
GROWTH = 0.25
"""Memory gain that triggers a new solution, if memory was too small for all layers."""
WEIGHT = 0.3
"""Weight of a change observed only once, which may be a stall."""

_measurement = attrgetter("cycles_per_flop", "frequency_Hz", "call_s", "curves", "dilation", "send", "take")
"""What a measurement says of a device, without its memory and what runs have shown since."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Devices by name and the links between them, as known at one time."""

    capabilities: Mapping[str, Capability]
    links: Links


def damp_ratio(ratio: float, before: float = 1.0) -> float:
    """Return the trusted part of `ratio` (observed over expected): confirmed changes, and WEIGHT of others.

    `before` is the previous observation over the current expectation; a change is confirmed if both show it.
    """
    twice = min(ratio, before) if min(ratio, before) > 1 else max(ratio, before)
    twice = twice if (ratio - 1) * (before - 1) > 0 else 1.0
    return twice * (1 - WEIGHT + WEIGHT * ratio / twice)


def drift(planned: Topology, now: Topology, devices: Collection[str]) -> float:
    """Return the largest difference of two topologies of `devices`: 0.2 for a factor of 1.2 either way."""
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


def is_alike(one: Topology, other: Topology) -> bool:
    """Return whether two topologies have the same devices and no difference above ALIKE."""
    devices = one.capabilities.keys()
    return devices == other.capabilities.keys() and drift(one, other, devices) <= ALIKE


def find_overloaded(need: Mapping[str, int], now: Topology) -> tuple[str, ...]:
    """Return the devices whose weights exceed the memory available to models, among those present."""
    devices = now.capabilities
    return tuple(name for name, n in need.items() if name in devices and n > devices[name].free_bytes)


def find_memory_gains(planned: Topology, now: Topology, whole_bytes: int) -> tuple[str, ...]:
    """Devices that had too little memory for all layers (`whole_bytes`) at planning, and have more now."""
    found = []
    for name, device in now.capabilities.items():
        before = planned.capabilities.get(name, device).free_bytes
        enough = min(whole_bytes, (1 + GROWTH) * before)
        if before < whole_bytes and device.free_bytes >= enough:
            found.append(name)
    return tuple(found)


def find_remeasured(planned: Topology, now: Topology) -> tuple[str, ...]:
    """Return the devices of both whose measurement is another one: workers that restarted."""
    both = planned.capabilities.keys() & now.capabilities.keys()
    changed = (n for n in both if _measurement(planned.capabilities[n]) != _measurement(now.capabilities[n]))
    return tuple(sorted(changed))


def find_recovered(planned: Topology, now: Topology, participants: Collection[str]) -> tuple[str, ...]:
    """Return unused devices that are, or whose links are, faster than planned by more than THRESHOLD."""
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
    planned: Topology,
    now: Topology,
    participants: Collection[str],
    need: Mapping[str, int],
    whole_bytes: int,
    layer_s: Callable[[Topology], float] | None = None,
) -> str | None:
    """Return the reason to solve the partition again, as text; None if there is none.

    `need` holds the bytes of each device's weights, `whole_bytes` those of all layers: a device with that
    much memory may work weight-stationary. `layer_s` predicts a layer's time by the current plan: drift
    counts only if it changes that time.
    """
    joined = now.capabilities.keys() - planned.capabilities.keys()
    left = [name for name in participants if name not in now.capabilities]
    if left:
        return f"{', '.join(sorted(left))} left"
    if joined:
        return f"{', '.join(sorted(joined))} joined"
    tight = find_overloaded({name: need[name] for name in participants}, now)
    if tight:
        return f"memory of {', '.join(tight)} is short"
    back = find_memory_gains(planned, now, whole_bytes)
    if back:
        return f"memory of {', '.join(back)} is back"
    anew = find_remeasured(planned, now)
    if anew:
        return f"new measurement of {', '.join(anew)}"
    apart = drift(planned, now, [name for name in planned.capabilities if name in now.capabilities])
    if apart > THRESHOLD and layer_s is not None:
        before_s, now_s = layer_s(planned), layer_s(now)
        apart = max(before_s, now_s) / min(before_s, now_s) - 1
    if apart > THRESHOLD:
        return f"{DRIFTED} by {apart:.0%}"
    return None


def is_kept(current_s: float, new_s: float, *, is_home: bool) -> bool:
    """Return whether the plan with layers of `current_s` is kept for the next run against one of `new_s`.

    The new plan must save LEAST_GAIN. If it `is_home` (the primary alone), any saving suffices: a split,
    or another device, that turned out slower is abandoned.
    """
    return current_s * (1 if is_home else 1 - LEAST_GAIN) <= new_s


def is_more_precise(new_bits: Sequence[int], current_bits: Sequence[int]) -> bool:
    """Return whether weights of these bits per layer are more precise; without bits they are float32."""
    return bool(current_bits) and (not new_bits or sum(new_bits) > sum(current_bits))


def most_saved_s(planned_s: float, now_s: float) -> float:
    """Estimate the most that another plan may save of a layer that takes `now_s` instead of `planned_s`.

    If devices became faster, other shares may save about as much again.
    """
    return max(abs(now_s - planned_s), LEAST_GAIN * now_s)


def is_worthwhile(current_s: float, new_s: float, n_layers: int, load_s: float, switch_s: float) -> bool:
    """Return whether `n_layers` more layers, of `current_s` or `new_s` each, end sooner with the new plan.

    A plan that saves less than LEAST_GAIN per layer does not pay. Its weights load for `load_s` while
    layers still run by the current plan; the switch, at which new members receive the layer's input, costs
    `switch_s`.
    """
    if new_s > (1 - LEAST_GAIN) * current_s:
        return False
    n_left = n_layers - ceil(load_s / current_s)
    return n_left * (current_s - new_s) > switch_s
