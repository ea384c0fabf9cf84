"""Check a program that was read from text: what is wrong with which step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pliant.ir.program import Compute, Exchange, Load, Program, Step, Tensor, TensorPart
from pliant.ir.projection import involves, join_segments


@dataclass(frozen=True, slots=True)
class ProgramFault:
    """What is wrong with one step, identified by its number in the whole program."""

    step: int
    reason: str


def program_faults(program: Program) -> Iterator[ProgramFault]:
    """Yield what would make a run incorrect, step by step; nothing for a valid program.

    A `Program` already ensures what `Segment` and `Step` check: lanes, and steps that wait for earlier ones.
    This checks that a layer begins after all its loads on its device, and that a message has both ends: a
    declared tensor that contains it, a sender that made it in the segment or held it at its start, and a
    receiver that waits for it or keeps it for the next segment.
    """
    before = _before(join_segments(program.segments).steps)
    yield from _loads(program.steps, before)
    tensors = {t.name: t for t in program.tensors}
    first = 0
    kept: tuple[str, ...] | None = None
    for segment in program.segments:
        waited = {j for step in segment.steps for j in (*step.after, *step.prefer)}
        for i, step in enumerate(segment.steps):
            if not isinstance(step.work, Exchange):
                continue
            for reason in _message(step.work, tensors):
                yield ProgramFault(first + i, reason)
            name = step.work.tensor
            made_here = bool(step.after) or not _computes(program, step.work.src)
            if not made_here and kept is not None and name not in kept:
                yield ProgramFault(
                    first + i, f"{name} was neither kept by the segment before nor made in this one."
                )
            if i not in waited and name not in segment.live and _computes(program, step.work.dst):
                yield ProgramFault(
                    first + i, f"nothing on {step.work.dst} waits for {name}, and it is not kept."
                )
        first += len(segment.steps)
        kept = segment.live


def _before(steps: Sequence[Step]) -> list[int]:
    """Return, for each step, the bit set of steps that have ended, or were skipped, when it begins."""
    before: list[int] = []
    last: dict[str, int] = {}
    for i, step in enumerate(steps):
        waits = {*step.after, *step.prefer} | ({last[step.lane]} if step.lane in last else set())
        found = 0
        for j in waits:
            found |= before[j] | 1 << j
        before.append(found)
        last[step.lane] = i
    return before


def _loads(steps: Sequence[Step], before: Sequence[int]) -> Iterator[ProgramFault]:
    for i, step in enumerate(steps):
        if not isinstance(step.work, Load):
            continue
        users = [
            j
            for j, other in enumerate(steps)
            if isinstance(other.work, Compute)
            and other.work.layer == step.work.layer
            and _owner(other) == _owner(step)
        ]
        if not users:
            yield ProgramFault(i, f"layer {step.work.layer} is loaded, but no step computes it.")
        for j in users:
            if not before[j] >> i & 1:
                yield ProgramFault(j, f"layer {step.work.layer} does not wait for its load, step {i}.")


def _message(work: Exchange, tensors: dict[str, Tensor]) -> Iterator[str]:
    tensor = tensors.get(work.tensor)
    if tensor is None:
        yield f"{work.tensor} is sent, but is not a tensor of the program."
        return
    rows, *columns = tensor.shape if len(tensor.shape) == 2 else (0,)
    if work.part is None or not (isinstance(rows, int) and columns and isinstance(columns[0], int)):
        return
    if not TensorPart(0, rows, 0, columns[0]).covers(work.part):
        yield f"{work.part} is not a part of {work.tensor}, which has [{rows}, {columns[0]}]."
    n_bytes = work.part.size * tensor.itemsize
    if work.n_bytes != n_bytes:
        yield f"{work.part} of {work.tensor} has {n_bytes} bytes, not {work.n_bytes}."


def _computes(program: Program, device: str) -> bool:
    """Return whether the program has the device's own work: a projection has only one device's."""
    return any(not isinstance(s.work, Exchange) and involves(s, device) for s in program.steps)


def _owner(step: Step) -> str:
    return step.lane.rpartition("/")[0]
