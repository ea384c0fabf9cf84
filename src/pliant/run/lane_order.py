"""The order of a segment's steps on each lane, and which lanes wait for which steps."""

from typing import final

from pliant.ir.program import Segment


@final
class LaneOrder:
    """Computed once for a segment, and reused while the same segment runs.

    `lanes` are the numbers of each lane's steps, in order; `only_lane` is the lane that has all steps, if
    there is one. For each step: `needs` are the steps of other lanes that it waits for, `preferences` those
    that it waits for until its latest start; `wakes` are the lanes to wake when it is done; `consumers` are
    the steps that wait for it.
    """

    __slots__ = ("consumers", "lanes", "needs", "only_lane", "preferences", "steps", "wakes")

    def __init__(self, segment: Segment, only: str | None) -> None:
        """With `only`, that lane runs all steps."""
        steps = segment.steps
        lane_of = [step.lane if only is None else only for step in steps]
        self.steps = steps
        self.lanes: dict[str, list[int]] = {}
        self.consumers: list[list[int]] = [[] for _ in steps]
        wakes: list[set[str]] = [set() for _ in steps]
        for i, step in enumerate(steps):
            self.lanes.setdefault(lane_of[i], []).append(i)
            for j in (*step.after, *step.prefer):
                self.consumers[j].append(i)
                if lane_of[j] != lane_of[i]:
                    wakes[j].add(lane_of[i])
        self.only_lane = next(iter(self.lanes)) if len(self.lanes) == 1 else None
        self.wakes = [tuple(sorted(r)) for r in wakes]
        self.needs = [tuple(j for j in s.after if lane_of[j] != lane_of[i]) for i, s in enumerate(steps)]
        self.preferences = [
            tuple(j for j in s.prefer if lane_of[j] != lane_of[i]) for i, s in enumerate(steps)
        ]
