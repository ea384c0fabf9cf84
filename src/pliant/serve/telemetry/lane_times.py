"""When each lane of a run was busy: a device's kernels, reads from the store, a link's exchanges."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from pliant.ir.cost import Span, SpanState
from pliant.ir.program import Compute, Exchange, Load, Program, Work, value
from pliant.serve.telemetry.tracing import SpanAttribute


@runtime_checkable
class ProgramRun(Protocol):
    """Details of an answer from a store or a cluster: its program, and one span for each step that ran."""

    @property
    def program(self) -> Program: ...

    @property
    def spans(self) -> tuple[Span, ...]: ...


@dataclass(frozen=True, slots=True)
class LaneTime:
    """A lane from its first step to the end of its last, in seconds before the end of the run."""

    name: str
    start_s: float
    end_s: float
    attributes: dict[str, SpanAttribute]


def lane_times(run: ProgramRun) -> Iterator[LaneTime]:
    """The lanes of `run` that ran a step: "kernels" of a device, "read" of a store, "exchange" of a link.

    Their attributes are the seconds of their steps (`pliant.busy_s`), the number of steps, and the device, or
    both ends of the link and the bytes.
    """
    steps, by_lane = run.program.steps, defaultdict[str, list[Span]](list)
    for span in run.spans:
        if span.state is SpanState.RAN:
            by_lane[span.lane].append(span)
    run_s = max((span.end_s for spans in by_lane.values() for span in spans), default=0.0)
    for spans in by_lane.values():
        works = [steps[span.step].work for span in spans]
        about: dict[str, SpanAttribute] = {
            "pliant.busy_s": sum(span.seconds for span in spans),
            "pliant.steps": len(spans),
            **_attributes(works),
        }
        start_s, end_s = min(span.start_s for span in spans), max(span.end_s for span in spans)
        yield LaneTime(_NAMES[type(works[0])], run_s - start_s, run_s - end_s, about)


_NAMES = {Compute: "kernels", Load: "read", Exchange: "exchange"}


def _attributes(works: list[Work]) -> dict[str, SpanAttribute]:
    match works[0]:
        case Compute(device=device):
            return {"pliant.device": device} if device else {}
        case Load():
            return {"pliant.bytes": sum(work.n_bytes for work in works if isinstance(work, Load))}
        case Exchange(src=src, dst=dst):
            n_bytes = sum(value(work.n_bytes, {}) for work in works if isinstance(work, Exchange))
            return {"pliant.from": src, "pliant.to": dst, "pliant.bytes": n_bytes}
