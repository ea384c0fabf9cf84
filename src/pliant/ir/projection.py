"""A device's own part of a program: the execution order of its thread, and what it waits for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pliant.ir.program import Compute, Exchange, Segment, Step


@dataclass(frozen=True, slots=True)
class Projection:
    """A device's own steps of a segment in execution order, and their `numbers` in the whole segment."""

    segment: Segment
    numbers: tuple[int, ...]


def project(segment: Segment, device: str) -> Projection:
    """Return the part of a segment that `device` runs: its lanes `device/...` and its exchanges.

    The device computes in the order of the steps, and sends a tensor as soon as it is computed. It waits for
    a message when a computation needs it, or at the end of the segment; messages of one sender are received
    in sending order. One thread does all of this, because passing a message to another thread costs about 0.4
    ms on idle cores. A send does not wait for its receiver, so members cannot deadlock.

    Raises ValueError if a step would wait for another device without an exchange.
    """
    own = [i for i, step in enumerate(segment.steps) if involves(step, device)]
    _check(segment.steps, own, device)
    order = _order(segment.steps, own, device)
    place = {number: at for at, number in enumerate(order)}
    steps = tuple(_renumber(segment.steps[number], place) for number in order)
    return Projection(Segment(steps), tuple(order))


def involves(step: Step, device: str) -> bool:
    """Return whether a step belongs to `device`'s own part of a program."""
    return device in _devices_of(step)


def n_devices(segments: Sequence[Segment]) -> int:
    """Return the number of devices that take part."""
    return len({device for segment in segments for step in segment.steps for device in _devices_of(step)})


def join_segments(segments: Sequence[Segment]) -> Segment:
    """Return the steps as one segment in which steps name what they wait for at the barriers.

    A device begins a segment when its own work of the previous ones has ended and its messages there have
    arrived. No device waits for another's work, nor for messages to others.
    """
    made: list[Step] = []
    ended: dict[str, tuple[int, ...]] = {}
    for segment in segments:
        first = len(made)
        begun: set[str] = set()
        ends: dict[str, list[int]] = {}
        for i, step in enumerate(segment.steps, first):
            after = tuple(first + j for j in step.after)
            if not after or step.lane not in begun:
                after = (*ended.get(_devices_of(step)[0], ()), *after)
            begun.add(step.lane)
            ends.setdefault(_devices_of(step)[-1], []).append(i)
            made.append(replace(step, after=after, prefer=tuple(first + j for j in step.prefer)))
        ended |= {device: tuple(numbers) for device, numbers in ends.items()}
    return Segment(tuple(made))


@dataclass(slots=True)
class ExpandedSteps:
    """Steps including message hand-overs: `seconds` of the added ones, None for the others.

    `numbers` are those of the steps in the program; an added step has its exchange's number.
    """

    segment: Segment = Segment(())  # noqa: RUF009 - frozen
    numbers: list[int] = field(default_factory=list)
    seconds: list[float | None] = field(default_factory=list)


def add_overheads(
    segments: Sequence[Segment], overhead_of: Callable[[Exchange], tuple[float, float]]
) -> ExpandedSteps:
    """Return `join_segments` with the hand-overs of messages, in the order of each device's `project`ion.

    `overhead_of` returns the seconds at both ends; ends with 0 seconds get no step.
    """
    steps = join_segments(segments).steps
    ends_s = {i: overhead_of(step.work) for i, step in enumerate(steps) if isinstance(step.work, Exchange)}
    if not any(map(any, ends_s.values())):
        return ExpandedSteps(Segment(steps), [*range(len(steps))], [None] * len(steps))
    return _OverheadInsertion(steps, ends_s).all(_orders(segments))


def _orders(segments: Sequence[Segment]) -> dict[str, list[int]]:
    """Return the numbers of each device's own steps in the joined segments, in its own order."""
    devices = {device for segment in segments for step in segment.steps for device in _devices_of(step)}
    orders: dict[str, list[int]] = {device: [] for device in sorted(devices)}
    first = 0
    for segment in segments:
        for device, order in orders.items():
            order += [first + i for i in project(segment, device).numbers]
        first += len(segment.steps)
    return orders


@dataclass(slots=True)
class _OverheadInsertion:
    """The steps under construction; `at` holds the program steps' new positions, `taken` the receives'."""

    steps: Sequence[Step]
    ends_s: dict[int, tuple[float, float]]
    made: list[Step] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    seconds: list[float | None] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)

    def all(self, orders: dict[str, list[int]]) -> ExpandedSteps:
        left = {device: iter(order) for device, order in orders.items()}
        heads = {device: next(order, None) for device, order in left.items()}
        while any(number is not None for number in heads.values()):
            for device, order in left.items():
                while (number := heads[device]) is not None and self._follow(number, device):
                    heads[device] = next(order, None)
        return ExpandedSteps(Segment(tuple(self.made)), self.numbers, self.seconds)

    def _follow(self, number: int, device: str) -> bool:
        """Add a device's part of a step; return False if it must wait for another device's part."""
        step = self.steps[number]
        if not _is_receive(step, device):
            after = tuple(sorted(self._waits(j, device) for j in step.after))
            if number in self.ends_s and self.ends_s[number][0]:
                after = (self._add(_thread(device, after), number, self.ends_s[number][0]),)
            self.at[number] = self._add(replace(step, after=after), number)
        elif number not in self.at:
            return False
        elif self.ends_s[number][1]:
            taking = _thread(device, (self.at[number],))
            self.taken[number] = self._add(taking, number, self.ends_s[number][1])
        return True

    def _waits(self, number: int, device: str) -> int:
        is_taken = _is_receive(self.steps[number], device)
        return self.taken.get(number, self.at[number]) if is_taken else self.at[number]

    def _add(self, step: Step, number: int, seconds: float | None = None) -> int:
        self.made.append(step)
        self.numbers.append(number)
        self.seconds.append(seconds)
        return len(self.made) - 1


def _thread(device: str, after: tuple[int, ...]) -> Step:
    """Return a step of the compute thread beside its stages."""
    return Step(f"{device}/cpu", Compute("hand over", rows=0, device=device), after)


def _devices_of(step: Step) -> tuple[str, ...]:
    """Return the devices of a step: for an exchange, sender and receiver; "" with only one device."""
    if isinstance(step.work, Exchange):
        return step.work.src, step.work.dst
    device, slash, _ = step.lane.partition("/")
    return (device if slash else "",)


def _check(steps: Sequence[Step], own: Sequence[int], device: str) -> None:
    for i in own:
        if _is_receive(steps[i], device):
            continue
        for j in steps[i].after:
            if not involves(steps[j], device):
                raise ValueError(
                    f"step {i} on {steps[i].lane} waits for step {j} on {steps[j].lane}, and no exchange "
                    f"carries that to {device}."
                )


def _order(steps: Sequence[Step], own: Sequence[int], device: str) -> list[int]:
    takes = [i for i in own if _is_receive(steps[i], device)]
    sends = [i for i in own if isinstance(steps[i].work, Exchange) and i not in takes]
    order: dict[int, None] = {}

    def send_what_is_made() -> None:
        for i in [i for i in sends if order.keys() >= set(steps[i].after)]:
            order[i] = None
            sends.remove(i)

    send_what_is_made()
    for i in own:
        if isinstance(steps[i].work, Exchange):
            continue
        for j in steps[i].after:
            order |= dict.fromkeys(k for k in takes if k <= j and steps[k].lane == steps[j].lane)
        order[i] = None
        send_what_is_made()
    return [*order, *(i for i in takes if i not in order)]


def _is_receive(step: Step, device: str) -> bool:
    return isinstance(step.work, Exchange) and step.work.dst == device


def _renumber(step: Step, place: dict[int, int]) -> Step:
    after = tuple(sorted(place[j] for j in step.after if j in place))
    return replace(step, after=after, prefer=tuple(place[j] for j in step.prefer if j in place))
