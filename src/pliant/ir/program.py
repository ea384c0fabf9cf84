"""Programs: steps in lanes, each with the earlier steps that it waits for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from pliant.ir.bitwidths import PLANES

# Parts 0..5 of a layer are its bit-planes, most significant first; this part is full fidelity.
FULL = PLANES


@dataclass(frozen=True, slots=True)
class LinearExtent:
    """A number that depends on an extent: `times` x the extent named `symbol` + `plus`."""

    symbol: str
    times: int = 1
    plus: int = 0

    def __str__(self) -> str:
        head = self.symbol if self.times == 1 else f"{self.times}*{self.symbol}"
        return f"{head}{self.plus:+d}" if self.plus else head


Amount = int | LinearExtent
Extents = Mapping[str, int]


def value(amount: Amount, extents: Extents) -> int:
    """Return `amount` as a number; raises ValueError if its extent is unbound."""
    if isinstance(amount, int):
        return amount
    if amount.symbol not in extents:
        raise ValueError(f"extent {amount.symbol!r} is not bound; bound are {sorted(extents)}.")
    return amount.times * extents[amount.symbol] + amount.plus


@dataclass(frozen=True, slots=True, order=True)
class SliceRun:
    """Contiguous slices of one part of one layer of a store.

    `layer` is the model's own layer number, `part` is 0..5 for a bit-plane and 6 (FULL) for full fidelity,
    slices are `first` .. `first + count - 1`. Whether it exists depends on the store.
    """

    layer: int
    part: int
    first: int
    count: int

    @property
    def is_possible(self) -> bool:
        return self.layer >= 0 and self.first >= 0 and self.count >= 1 and 0 <= self.part <= FULL

    def __str__(self) -> str:
        part = "full" if self.part == FULL else f"plane {self.part}"
        return f"{part} [{self.first}:{self.first + self.count}]"


@dataclass(frozen=True, slots=True)
class Compute:
    """One coarse kernel call: a whole layer, the embedding, the head.

    `layer` is the model's own layer number and `width` its number of slices (in a cluster: of heads or
    columns), None if not applicable; `rows` is the number of tokens. `device` is the computing device, for
    costs that differ between devices; "" if there is only one.
    """

    kernel: str
    layer: int | None = None
    width: int | None = None
    rows: Amount = LinearExtent("tokens")
    device: str = ""

    def __str__(self) -> str:
        layer = "" if self.layer is None else f" {self.layer}"
        width = "" if self.width is None else f" x{self.width}"
        return f"{self.kernel}{layer}{width} rows {self.rows}"


@dataclass(frozen=True, slots=True)
class Load:
    """Reads some runs of one layer from the store: one IO job with `n_reads` disk reads.

    Runs that are adjacent on the disk are one read; a run whose slices are not contiguous on the disk is
    several.
    """

    layer: int
    runs: tuple[SliceRun, ...]
    n_bytes: int
    n_reads: int = 1

    def __post_init__(self) -> None:
        if not self.runs or any(r.layer != self.layer or not r.is_possible for r in self.runs):
            raise ValueError(f"a load of layer {self.layer} needs possible runs of that layer, not {self}.")
        n_slices = sum(run.count for run in self.runs)
        if self.n_bytes < 1 or not 1 <= self.n_reads <= n_slices:
            raise ValueError(f"{self.n_bytes} bytes in {self.n_reads} reads do not bring in {self}.")

    def __str__(self) -> str:
        reads = f" in {self.n_reads} reads" if self.n_reads > 1 else ""
        return f"load {self.layer} {', '.join(str(r) for r in self.runs)} ({self.n_bytes} B{reads})"


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A non-empty rectangle of a two-dimensional tensor, in plain numbers."""

    first_row: int
    n_rows: int
    first_column: int
    n_columns: int

    def __post_init__(self) -> None:
        if min(self.first_row, self.first_column) < 0 or min(self.n_rows, self.n_columns) < 1:
            raise ValueError(f"{self} is not a part of a tensor: it begins before it, or is empty.")

    @property
    def rows(self) -> range:
        return range(self.first_row, self.first_row + self.n_rows)

    @property
    def columns(self) -> range:
        return range(self.first_column, self.first_column + self.n_columns)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.n_rows * self.n_columns

    def shared(self, other: "TensorPart") -> "TensorPart | None":
        """Return the intersection with `other`; None if it is empty."""
        row, n_rows = _overlap(self.first_row, self.n_rows, other.first_row, other.n_rows)
        column, n = _overlap(self.first_column, self.n_columns, other.first_column, other.n_columns)
        return TensorPart(row, n_rows, column, n) if n_rows > 0 and n > 0 else None

    def covers(self, other: "TensorPart") -> bool:
        """Return whether it contains all of `other`."""
        return (
            self.first_row <= other.first_row
            and self.first_column <= other.first_column
            and self.first_row + self.n_rows >= other.first_row + other.n_rows
            and self.first_column + self.n_columns >= other.first_column + other.n_columns
        )

    def __str__(self) -> str:
        return f"[{self.rows.start}:{self.rows.stop}, {self.columns.start}:{self.columns.stop}]"


def part_of(rows: range, columns: range) -> TensorPart | None:
    """Return the rectangle of these rows and columns; None if it is empty."""
    if not rows or not columns:
        return None
    return TensorPart(rows.start, len(rows), columns.start, len(columns))


@dataclass(frozen=True, slots=True)
class Exchange:
    """One tensor, or `part` of it, from one device to another; belongs on lane `net:src->dst`."""

    tensor: str
    n_bytes: Amount
    src: str
    dst: str
    part: TensorPart | None = None

    def __str__(self) -> str:
        return f"send {self.tensor}{self.part or ''} {self.src}->{self.dst} ({self.n_bytes} B)"


Work = Compute | Load | Exchange


@dataclass(frozen=True, slots=True)
class Step:
    """One piece of work. `lane` runs its steps in order; numbers count from the segment's first step.

    `after` holds earlier steps that must end first. `prefer` holds earlier steps worth waiting for, but only
    until `latest_start_s` (seconds from the start of the run; None waits for all of them); the step then runs
    without those that have not ended. A load whose turn comes after its latest start is skipped, because it
    would delay a required load.
    """

    lane: str
    work: Work
    after: tuple[int, ...] = ()
    prefer: tuple[int, ...] = ()
    latest_start_s: float | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array that lives for a run; a dimension may depend on an extent."""

    name: str
    shape: tuple[Amount, ...]
    itemsize: int = 4


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps that can be repeated as a unit; only the tensors in `live` outlast its end."""

    steps: tuple[Step, ...]
    live: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for i, step in enumerate(self.steps):
            check_step(i, step)


@dataclass(frozen=True, slots=True)
class Program:
    """Segments in order with a barrier between them, the tensors they name and the extents they need.

    A device begins a segment when its own steps of the previous ones have ended; it does not wait for other
    devices, nor for messages on their way to them.
    """

    segments: tuple[Segment, ...]
    tensors: tuple[Tensor, ...] = ()
    extents: tuple[str, ...] = ("tokens",)

    def __post_init__(self) -> None:
        names = [t.name for t in self.tensors]
        if len(set(names)) != len(names):
            raise ValueError(f"tensor names {names} are not unique.")
        for s, segment in enumerate(self.segments):
            unknown = set(segment.live) - set(names)
            if unknown:
                raise ValueError(
                    f"segment {s} keeps {sorted(unknown)}, which are not tensors of the program."
                )
        unknown = {a.symbol for a in _amounts(self) if isinstance(a, LinearExtent)} - set(self.extents)
        if unknown:
            raise ValueError(f"extents {sorted(unknown)} are used but not declared in {self.extents}.")

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in order; a span refers to a step by its number here."""
        return tuple(step for segment in self.segments for step in segment.steps)

    @property
    def lanes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(step.lane for step in self.steps))

    @property
    def untimed(self) -> "Program":
        """The program without latest starts: steps wait for all preferred steps; no load is skipped."""
        segments = tuple(
            replace(g, steps=tuple(replace(step, latest_start_s=None) for step in g.steps))
            for g in self.segments
        )
        return replace(self, segments=segments)


def bind(program: Program, extents: Extents) -> Program:
    """Return the program with every extent bound; raises ValueError if one is missing or below 1."""
    for name in program.extents:
        if extents.get(name, 0) < 1:
            raise ValueError(f"extent {name!r} is {extents.get(name)}; bind it to a number of at least 1.")
    segments = tuple(
        replace(g, steps=tuple(_bound_step(step, extents) for step in g.steps)) for g in program.segments
    )
    tensors = tuple(replace(t, shape=tuple(value(d, extents) for d in t.shape)) for t in program.tensors)
    return Program(segments, tensors, ())


def check_step(i: int, step: Step) -> None:
    if not step.lane or step.lane.split() != [step.lane]:
        raise ValueError(f"step {i} needs a lane name without blanks, not {step.lane!r}.")
    for j in (*step.after, *step.prefer):
        if not 0 <= j < i:
            raise ValueError(f"step {i} waits for step {j}, but may only name earlier steps of its segment.")
    if step.latest_start_s is not None and not step.latest_start_s >= 0:
        raise ValueError(f"step {i} cannot start by {step.latest_start_s} s: runs begin at 0.")
    if step.latest_start_s is not None and not (step.prefer or isinstance(step.work, Load)):
        raise ValueError(f"step {i} has a latest start, but is not a load and prefers nothing.")
    if isinstance(step.work, Exchange) and step.work.src == step.work.dst:
        raise ValueError(f"step {i} sends {step.work.tensor} from {step.work.src} to itself.")
    if isinstance(step.work, Exchange) and step.lane != f"net:{step.work.src}->{step.work.dst}":
        raise ValueError(f"step {i} sends {step.work.src}->{step.work.dst} on lane {step.lane!r}.")
    if isinstance(step.work, Compute) and not step.lane.startswith(_lanes_of(step.work.device)):
        raise ValueError(f"step {i} computes on {step.work.device} on lane {step.lane!r}.")


def _lanes_of(device: str) -> str:
    """Return the prefix of a device's own lane names."""
    return f"{device}/" if device else ""


def _overlap(first: int, n: int, other: int, n_other: int) -> tuple[int, int]:
    """Return the start of the overlap of two ranges, and its length, 0 or less if there is none."""
    start = max(first, other)
    return start, min(first + n, other + n_other) - start


def _bound_step(step: Step, extents: Extents) -> Step:
    if isinstance(step.work, Load):
        return step
    work = _bound(step.work, extents)
    return Step(step.lane, work, step.after, step.prefer, step.latest_start_s)


def _bound(work: Work, extents: Extents) -> Work:
    match work:
        case Compute():
            return Compute(work.kernel, work.layer, work.width, value(work.rows, extents), work.device)
        case Exchange():
            return replace(work, n_bytes=value(work.n_bytes, extents))
        case Load():
            return work
        case _:
            assert_never(work)


def _amounts(program: Program) -> Iterator[Amount]:
    for tensor in program.tensors:
        yield from tensor.shape
    for step in program.steps:
        match step.work:
            case Compute(rows=rows):
                yield rows
            case Exchange(n_bytes=n_bytes):
                yield n_bytes
            case Load():
                pass
            case _:
                assert_never(step.work)
