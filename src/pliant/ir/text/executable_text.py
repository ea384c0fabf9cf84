"""An executable as stable text, for people and golden files; it parses back."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pliant.errors import InputError
from pliant.ir.executable import (
    ARENA,
    Address,
    Alias,
    ArenaTensor,
    Argument,
    Constant,
    Executable,
    ExecutableType,
    Formula,
    KernelCall,
    Number,
    Scalar,
)
from pliant.ir.text.names import NAME, match_line, name_text, parse_name, parse_names

HEAD = "executable "
"""The start of an executable's first line."""
PartKind = Literal["head", "input", "output", "constant", "arena", "tensor", "alias", "call", "copy"]
_INDENT = "    "

_NUMBER = r"(?:-?\d+|\{[^{}]* = -?\d+\})"
_FLOAT = r"-?(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)"
_ADDRESS = rf"{NAME}\+{_NUMBER}"
_SCALAR = rf"(?:{_ADDRESS}|null|{_FLOAT}|{_NUMBER})"
_TYPE = rf"\w+\[(?:{_NUMBER}(?:,{_NUMBER})*)?\]"
_VALUE = rf"(?:{_SCALAR}|\[(?:{_SCALAR}(?:,{_SCALAR})*)?\])"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.ASCII)


_HEAD = _pattern(rf"executable (?P<target>{NAME}), (?P<threads>\d+) threads(?P<sizes>(?: {NAME}=\d+)*)")
_SIZE = _pattern(rf"(?P<name>{NAME})=(?P<size>\d+)")
_PORT = _pattern(rf"(?:input|output) (?P<name>{NAME}) (?P<type>{_TYPE})")
_DIGEST = r"(?: sha256 (?P<digest>[0-9a-f]+))?"
_PLAIN = _pattern(rf"constant (?P<name>{NAME}) (?P<type>{_TYPE}), (?P<size>\d+) B{_DIGEST}")
_PACKED = _pattern(rf"packed (?P<name>{NAME}) (?P<size>\d+) B(?: from (?P<source>{NAME}))?{_DIGEST}")
_ARENA = _pattern(rf"arena (?P<size>{_NUMBER}) B, scratch (?P<scratch>{_NUMBER}) B a thread")
_TENSOR = _pattern(
    rf"tensor (?P<name>{NAME}) arena\+(?P<offset>\d+) (?P<size>{_NUMBER}) B, "
    r"calls (?P<first>\d+) to (?P<last>\d+)"
)
_ALIAS = _pattern(rf"alias (?P<name>{NAME}) (?P<address>{_ADDRESS})")
_CALL = _pattern(
    rf"call (?P<number>\d+) (?P<kernel>{NAME}), (?P<units>{_NUMBER}) units, grain (?P<grain>{_NUMBER}), "
    rf"scratch (?P<scratch>{_NUMBER}) B(?P<extent>, extent(?: {NAME})*)?; (?P<op>{NAME}) (?P<label>{NAME})"
)
_TOUCHED = _pattern(rf"{_INDENT}reads(?P<reads>(?: {NAME})*) writes(?P<writes>(?: {NAME})*)")
_FIELD = r"[A-Za-z_][\w.]*"
_ARGUMENT = _pattern(rf"(?P<field>{_FIELD})=(?P<value>{_VALUE})")
_ARGUMENTS = _pattern(rf"{_INDENT}(?:{_FIELD}={_VALUE}(?: {_FIELD}={_VALUE})*)?")
_COPY = _pattern(rf"copy (?P<name>{NAME}) from (?P<address>{_ADDRESS})")


@dataclass(frozen=True, slots=True)
class ExecutableFile:
    """An executable read from text, and the line of each part, from 1, by its kind and number."""

    executable: Executable
    lines: Mapping[tuple[PartKind, int], int]


def executable_text(executable: Executable) -> str:
    """Return one line per tensor, three per call; `parse_executable` returns an equal executable."""
    return "\n".join(_lines(executable)) + "\n"


def parse_executable(text: str) -> ExecutableFile:
    """Parse the output of `executable_text`; lines before its first line are ignored.

    Raises InputError that names the invalid line.
    """
    written = text.splitlines() or [""]
    first = next((i for i, line in enumerate(written) if line.startswith(HEAD)), 0)
    reader = _ExecutableParser()
    number = first
    try:
        while number < len(written):
            size = 3 if written[number].startswith("call ") else 1
            reader.add(written[number : number + size], number + 1)
            number += size
        number = first
        return ExecutableFile(reader.executable(), reader.lines)
    except _LineError as error:
        raise InputError(f"line {number + 1 + error.line}: {error}") from error
    except ValueError as error:
        raise InputError(f"line {number + 1}: {error}") from error


def _lines(x: Executable) -> Iterator[str]:
    sizes = "".join(f" {name_text(name)}={size}" for name, size in x.sizes)
    yield f"{HEAD}{name_text(x.target)}, {x.n_threads} threads{sizes}"
    for kind, ports in (("input", x.inputs), ("output", x.outputs)):
        for name, type_ in ports:
            yield f"{kind} {name_text(name)} {_type_text(type_)}"
    for constant in x.constants:
        about = f" sha256 {constant.digest}" if constant.digest else ""
        if constant.type is not None:
            type_text = _type_text(constant.type)
            yield f"constant {name_text(constant.name)} {type_text}, {constant.n_bytes} B{about}"
        else:
            source = f" from {name_text(constant.source)}" if constant.source else ""
            yield f"packed {name_text(constant.name)} {constant.n_bytes} B{source}{about}"
    yield f"arena {_number_text(x.arena_bytes)} B, scratch {_number_text(x.scratch_bytes)} B a thread"
    for t in x.tensors:
        size = _number_text(t.n_bytes)
        yield f"tensor {name_text(t.name)} arena+{t.offset} {size} B, calls {t.first} to {t.last}"
    for alias in x.aliases:
        yield f"alias {name_text(alias.name)} {_scalar_text(alias.address)}"
    for i, call in enumerate(x.calls):
        yield from _call_lines(i, call)
    for y, address in x.copies:
        yield f"copy {name_text(y)} from {_scalar_text(address)}"


def _call_lines(number: int, call: KernelCall) -> Iterator[str]:
    units, grain, scratch = map(_number_text, (call.n_units, call.grain, call.scratch_bytes))
    about = f"{units} units, grain {grain}, scratch {scratch} B"
    if call.extent is not None:
        about += ", extent" + _names_text(call.extent)
    yield f"call {number} {name_text(call.kernel)}, {about}; {name_text(call.op)} {name_text(call.label)}"
    yield f"{_INDENT}reads{_names_text(call.reads)} writes{_names_text(call.writes)}"
    arguments = (f"{name}={_argument_text(value)}" for name, value in call.arguments)
    yield _INDENT + " ".join(arguments)


def _names_text(names: tuple[str, ...]) -> str:
    return "".join(f" {name_text(name)}" for name in names)


def _type_text(type_: ExecutableType) -> str:
    return f"{type_.dtype}[{','.join(map(_number_text, type_.shape))}]"


def _argument_text(value: Argument) -> str:
    return f"[{','.join(map(_scalar_text, value))}]" if isinstance(value, tuple) else _scalar_text(value)


def _scalar_text(value: Scalar) -> str:
    match value:
        case None:
            return "null"
        case Address(space, offset):
            return f"{_space_text(space)}+{_number_text(offset)}"
        case float():
            return repr(value)
        case _:
            return _number_text(value)


def _space_text(space: str) -> str:
    if space == ARENA:
        return "arena"
    return '"arena"' if space == "arena" else name_text(space)


def _number_text(number: Number) -> str:
    return f"{{{number.text} = {number.value}}}" if isinstance(number, Formula) else str(number)


class _LineError(ValueError):
    """An error in a line, counted from the first line of its part."""

    def __init__(self, line: int, error: ValueError) -> None:
        super().__init__(str(error))
        self.line = line


@dataclass
class _ExecutableParser:
    """The parts read so far, in the order of printing."""

    head: re.Match[str] | None = None
    arena: re.Match[str] | None = None
    inputs: list[tuple[str, ExecutableType]] = field(default_factory=list)
    outputs: list[tuple[str, ExecutableType]] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    tensors: list[ArenaTensor] = field(default_factory=list)
    aliases: list[Alias] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    copies: list[tuple[str, Address]] = field(default_factory=list)
    lines: dict[tuple[PartKind, int], int] = field(default_factory=dict)

    def add(self, lines: list[str], number: int) -> None:
        """Add one part, which begins at line `number`."""
        line = lines[0]
        if self.head is None:
            what = f"an executable's first line: '{HEAD}TARGET, N threads [SIZE=N ...]'"
            self.head = match_line(_HEAD, line, what)
            self.lines["head", 0] = number
            return
        kind, at = self._part(line.partition(" ")[0], lines)
        self.lines[kind, at] = number

    def _part(self, word: str, lines: list[str]) -> tuple[PartKind, int]:
        line = lines[0]
        match word:
            case "input":
                self.inputs.append(_port(line))
                return "input", len(self.inputs) - 1
            case "output":
                self.outputs.append(_port(line))
                return "output", len(self.outputs) - 1
            case "constant" | "packed":
                self.constants.append(_constant(line))
                return "constant", len(self.constants) - 1
            case "arena" if self.arena is None:
                self.arena = match_line(_ARENA, line, "an arena: 'arena BYTES B, scratch BYTES B a thread'")
                return "arena", 0
            case "tensor":
                self.tensors.append(_tensor(line))
                return "tensor", len(self.tensors) - 1
            case "alias":
                self.aliases.append(_alias(line))
                return "alias", len(self.aliases) - 1
            case "call":
                self.calls.append(_call(lines, len(self.calls)))
                return "call", len(self.calls) - 1
            case "copy":
                found = match_line(_COPY, line, "a copy: 'copy OUTPUT from SPACE+OFFSET'")
                self.copies.append((parse_name(found["name"]), _address(found["address"])))
                return "copy", len(self.copies) - 1
            case _:
                raise ValueError(
                    f"{line.strip()!r} is not a part of an executable: lines begin with input, output, "
                    "constant, packed, arena (once), tensor, alias, call or copy."
                )

    def executable(self) -> Executable:
        if self.head is None or self.arena is None:
            raise ValueError("the executable has no line 'arena BYTES B, scratch BYTES B a thread'.")
        return Executable(
            parse_name(self.head["target"]),
            int(self.head["threads"]),
            tuple(self.inputs),
            tuple(self.outputs),
            tuple(self.constants),
            _number(self.arena["size"]),
            _number(self.arena["scratch"]),
            tuple(self.tensors),
            tuple(self.aliases),
            tuple(self.calls),
            tuple(self.copies),
            tuple((parse_name(s["name"]), int(s["size"])) for s in _SIZE.finditer(self.head["sizes"])),
        )


def _port(line: str) -> tuple[str, ExecutableType]:
    found = match_line(_PORT, line, "an input or output: 'input NAME TYPE[SIZE,...]'")
    return parse_name(found["name"]), _type(found["type"])


def _constant(line: str) -> Constant:
    if line.startswith("constant "):
        found = match_line(
            _PLAIN, line, "a constant: 'constant NAME TYPE[SIZE,...], BYTES B [sha256 DIGEST]'"
        )
        return Constant(
            parse_name(found["name"]), int(found["size"]), _type(found["type"]), digest=found["digest"] or ""
        )
    found = match_line(_PACKED, line, "a packed constant: 'packed NAME BYTES B [from NAME] [sha256 DIGEST]'")
    source = "" if found["source"] is None else parse_name(found["source"])
    return Constant(
        parse_name(found["name"]), int(found["size"]), source=source, digest=found["digest"] or ""
    )


def _tensor(line: str) -> ArenaTensor:
    found = match_line(_TENSOR, line, "a tensor: 'tensor NAME arena+OFFSET BYTES B, calls FIRST to LAST'")
    first, last = int(found["first"]), int(found["last"])
    return ArenaTensor(parse_name(found["name"]), int(found["offset"]), _number(found["size"]), first, last)


def _alias(line: str) -> Alias:
    found = match_line(_ALIAS, line, "an alias: 'alias NAME SPACE+OFFSET'")
    return Alias(parse_name(found["name"]), _address(found["address"]))


def _call(lines: list[str], number: int) -> KernelCall:
    found = match_line(
        _CALL,
        lines[0],
        "a call: 'call NUMBER KERNEL, N units, grain N, scratch BYTES B[, extent [FIELD ...]]; OP LABEL'",
    )
    if int(found["number"]) != number:
        raise ValueError(f"call {number} comes here, not {found['number']}.")
    at, rest = 1, (*lines[1:], "", "")[:2]
    try:
        touched = match_line(_TOUCHED, rest[0], "what a call touches: 'reads [NAME ...] writes [NAME ...]'")
        at = 2
        given = match_line(_ARGUMENTS, rest[1], "a call's arguments: 'FIELD=VALUE ...'")[0]
    except ValueError as error:
        raise _LineError(at, error) from error
    extent = found["extent"]
    return KernelCall(
        parse_name(found["kernel"]),
        _number(found["units"]),
        _number(found["grain"]),
        _number(found["scratch"]),
        tuple(parse_names(touched["reads"])),
        tuple(parse_names(touched["writes"])),
        tuple((a["field"], _argument(a["value"])) for a in _ARGUMENT.finditer(given)),
        None if extent is None else tuple(parse_names(extent.removeprefix(", extent"))),
        parse_name(found["op"]),
        parse_name(found["label"]),
    )


def _type(text: str) -> ExecutableType:
    dtype, _, shape = text.partition("[")
    return ExecutableType(dtype, tuple(map(_number, re.findall(_NUMBER, shape, re.ASCII))))


def _argument(text: str) -> Argument:
    if not text.startswith("["):
        return _scalar(text)
    return tuple(map(_scalar, re.findall(_SCALAR, text[1:-1], re.ASCII)))


def _scalar(text: str) -> Scalar:
    if text == "null":
        return None
    if re.fullmatch(_ADDRESS, text, re.ASCII):
        return _address(text)
    return float(text) if re.fullmatch(_FLOAT, text, re.ASCII) else _number(text)


def _address(text: str) -> Address:
    space, offset = re.fullmatch(rf"({NAME})\+({_NUMBER})", text, re.ASCII).groups()  # type: ignore[union-attr]
    return Address(ARENA if space == "arena" else parse_name(space), _number(offset))


def _number(text: str) -> Number:
    if not text.startswith("{"):
        return int(text)
    formula, _, value = text[1:-1].rpartition(" = ")
    return Formula(formula, int(value))
