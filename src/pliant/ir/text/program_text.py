"""A program as stable text, for people and golden files; it parses back."""

import json
import re
from dataclasses import dataclass
from typing import assert_never

from pliant.errors import InputError
from pliant.ir.program import (
    FULL,
    Amount,
    Compute,
    Exchange,
    LinearExtent,
    Load,
    Program,
    Segment,
    SliceRun,
    Step,
    Tensor,
    TensorPart,
    Work,
    check_step,
)
from pliant.ir.text.names import NAME, match_line, name_text, parse_name, parse_names

HEAD = "program "
"""The start of a program's first line."""
_N = r"-?\d+"
_SYMBOL = r'(?:[A-Za-z_][A-Za-z_0-9]*|"(?:[^"\\]|\\.)*")'
_AMOUNT = rf"(?:(?:{_N}\*)?{_SYMBOL}(?:[+-]\d+)?|{_N})"
_LINEAR = re.compile(rf"(?:(?P<times>{_N})\*)?(?P<symbol>{_SYMBOL})(?P<plus>[+-]\d+)?")
_TENSOR = re.compile(rf"tensor (?P<name>{NAME}) \[(?P<shape>.*)\] x (?P<size>{_N}) B, lives for the run")
_SEGMENT = re.compile(rf"segment (?P<number>\d+)(?: keeps(?P<live>(?: {NAME})+))?")
_STEP = re.compile(
    r" *(?P<number>\d+) (?P<lane>\S+) +(?P<work>.*?)(?: after(?P<after>(?: \d+)+))?"
    r"(?: prefer(?P<prefer>(?: \d+)+))?(?: until (?P<until>\S+) s)?"
)
_COMPUTE = re.compile(
    rf"(?P<kernel>{NAME})(?: (?P<layer>{_N}))?(?: x(?P<width>{_N}))? rows (?P<rows>{_AMOUNT})"
    rf"(?: on (?P<device>{NAME}))?"
)
_LOAD = re.compile(r"load (?P<layer>\d+) (?P<runs>.*) \((?P<n_bytes>\d+) B(?: in (?P<n_reads>\d+) reads)?\)")
_RUN = re.compile(r"(?:full|plane (?P<part>\d+)) \[(?P<first>\d+):(?P<stop>\d+)\]")
_SEND = re.compile(
    rf"send (?P<tensor>{NAME})(?:\[(?P<part>[\d:, ]+)\])? (?P<src>{NAME})->(?P<dst>{NAME}) "
    rf"\((?P<n_bytes>{_AMOUNT}) B\)"
)
_PART = re.compile(r"(?P<row>\d+):(?P<rows>\d+), (?P<column>\d+):(?P<columns>\d+)")


@dataclass(frozen=True, slots=True)
class ProgramFile:
    """A program read from text, and the line of each of its steps, from 1."""

    program: Program
    lines: tuple[int, ...]


def program_text(program: Program) -> str:
    """Return one line per tensor, segment and step; `parse_program` returns an equal program."""
    lines = [HEAD + (" ".join(map(name_text, program.extents)) or "(bound)")]
    for t in program.tensors:
        shape = ", ".join(map(_amount, t.shape))
        lines.append(f"tensor {name_text(t.name)} [{shape}] x {t.itemsize} B, lives for the run")
    for s, segment in enumerate(program.segments):
        lines.append(
            f"segment {s}" + (f" keeps {' '.join(map(name_text, segment.live))}" if segment.live else "")
        )
        lines += [_step_line(i, step) for i, step in enumerate(segment.steps)]
    return "\n".join(lines) + "\n"


def parse_program(text: str) -> ProgramFile:
    """Parse the output of `program_text`; lines before its first line, such as a plan's page, are ignored.

    Raises InputError that names the invalid line.
    """
    extents: tuple[str, ...] = ()
    tensors: list[Tensor] = []
    segments: list[tuple[tuple[str, ...], list[Step]]] = []
    lines: list[int] = []
    written = text.splitlines() or [""]
    head = number = next((i for i, line in enumerate(written, 1) if line.startswith(HEAD)), 1)
    try:
        for number, line in enumerate(written[head - 1 :], head):
            if number == head:
                extents = _extents(line)
            elif line.startswith("tensor ") and not segments:
                tensors.append(_tensor(line))
            elif line.startswith("segment "):
                segments.append((_live(line, len(segments)), []))
            elif not segments:
                raise ValueError("tensors come first, then 'segment 0', then its steps.")
            else:
                steps = segments[-1][1]
                steps.append(_step(line, len(steps)))
                check_step(len(steps) - 1, steps[-1])
                lines.append(number)
        number = head
        made = tuple(Segment(tuple(steps), live) for live, steps in segments)
        return ProgramFile(Program(made, tuple(tensors), extents), tuple(lines))
    except ValueError as error:
        raise InputError(f"line {number}: {error}") from error


def _step_line(i: int, step: Step) -> str:
    line = f"{i:4d} {step.lane:<4} {_work(step.work, step.lane)}"
    if step.after:
        line += " after " + " ".join(map(str, step.after))
    if step.prefer:
        line += " prefer " + " ".join(map(str, step.prefer))
    if step.latest_start_s is not None:
        line += f" until {float(step.latest_start_s)!r} s"
    return line


def _work(work: Work, lane: str) -> str:
    match work:
        case Compute():
            kernel = json.dumps(work.kernel) if work.kernel in ("load", "send") else name_text(work.kernel)
            layer = "" if work.layer is None else f" {work.layer}"
            width = "" if work.width is None else f" x{work.width}"
            on = "" if work.device == _device_of(lane) else f" on {name_text(work.device)}"
            return f"{kernel}{layer}{width} rows {_amount(work.rows)}{on}"
        case Load():
            return str(work)
        case Exchange():
            ends = f"{name_text(work.src)}->{name_text(work.dst)}"
            return f"send {name_text(work.tensor)}{work.part or ''} {ends} ({_amount(work.n_bytes)} B)"
        case _:
            assert_never(work)


def _amount(amount: Amount) -> str:
    if isinstance(amount, int):
        return str(amount)
    times = "" if amount.times == 1 else f"{amount.times}*"
    symbol = amount.symbol if re.fullmatch(_SYMBOL, amount.symbol) else json.dumps(amount.symbol)
    return f"{times}{symbol}" + (f"{amount.plus:+d}" if amount.plus else "")


def _device_of(lane: str) -> str:
    """Return the device of a lane, if its name contains one."""
    return lane.rpartition("/")[0]


def _extents(line: str) -> tuple[str, ...]:
    if not line.startswith(HEAD):
        raise ValueError(f"a program begins with {HEAD.strip()!r} and its extents, or '(bound)'.")
    names = line.removeprefix(HEAD)
    return () if names == "(bound)" else tuple(parse_names(names))


def _tensor(line: str) -> Tensor:
    found = match_line(_TENSOR, line, "a tensor: 'tensor NAME [SIZE, ...] x BYTES B, lives for the run'")
    shape = tuple(_to_amount(one) for one in found["shape"].split(", ") if one)
    return Tensor(parse_name(found["name"]), shape, int(found["size"]))


def _live(line: str, number: int) -> tuple[str, ...]:
    found = match_line(_SEGMENT, line, "a segment: 'segment NUMBER', or 'segment NUMBER keeps NAME ...'")
    if int(found["number"]) != number:
        raise ValueError(f"segment {number} comes here, not {found['number']}.")
    return tuple(parse_names(found["live"] or ""))


def _step(line: str, number: int) -> Step:
    found = match_line(
        _STEP, line, "a step: 'NUMBER LANE WORK [after N ...] [prefer N ...] [until SECONDS s]'"
    )
    if int(found["number"]) != number:
        raise ValueError(f"step {number} of the segment comes here, not {found['number']}.")
    lane, text = found["lane"], found["work"]
    work: Work
    if text.startswith("load "):
        work = _to_load(text)
    else:
        work = _to_exchange(text) if text.startswith("send ") else _to_compute(text, lane)
    after, prefer = (tuple(map(int, (found[x] or "").split())) for x in ("after", "prefer"))
    return Step(lane, work, after, prefer, None if found["until"] is None else float(found["until"]))


def _to_compute(text: str, lane: str) -> Compute:
    found = match_line(
        _COMPUTE, text, "work: 'KERNEL [LAYER] [xWIDTH] rows AMOUNT', 'load ...' or 'send ...'"
    )
    layer, width = (None if found[x] is None else int(found[x]) for x in ("layer", "width"))
    device = _device_of(lane) if found["device"] is None else parse_name(found["device"])
    return Compute(parse_name(found["kernel"]), layer, width, _to_amount(found["rows"]), device)


def _to_load(text: str) -> Load:
    found = match_line(_LOAD, text, "a load: 'load LAYER plane N [FIRST:END], ... (BYTES B [in N reads])'")
    layer = int(found["layer"])
    runs = []
    for one in found["runs"].split(", "):
        run = match_line(_RUN, one, "of a load: 'plane N [FIRST:END]' or 'full [FIRST:END]'")
        part, first = FULL if run["part"] is None else int(run["part"]), int(run["first"])
        runs.append(SliceRun(layer, part, first, int(run["stop"]) - first))
    return Load(layer, tuple(runs), int(found["n_bytes"]), int(found["n_reads"] or 1))


def _to_exchange(text: str) -> Exchange:
    found = match_line(_SEND, text, "a message: 'send TENSOR[ROWS, COLUMNS] FROM->TO (BYTES B)'")
    tensor, src, dst = (parse_name(found[x]) for x in ("tensor", "src", "dst"))
    return Exchange(tensor, _to_amount(found["n_bytes"]), src, dst, _to_part(found["part"]))


def _to_part(text: str | None) -> TensorPart | None:
    if text is None:
        return None
    found = match_line(_PART, text, "a part: 'FIRST:END, FIRST:END'")
    row, rows, column, columns = (int(found[x]) for x in ("row", "rows", "column", "columns"))
    return TensorPart(row, rows - row, column, columns - column)


def _to_amount(text: str) -> Amount:
    if re.fullmatch(_N, text):
        return int(text)
    found = match_line(_LINEAR, text, "an amount: a number, or TIMES*EXTENT+NUMBER")
    return LinearExtent(parse_name(found["symbol"]), int(found["times"] or 1), int(found["plus"] or 0))
