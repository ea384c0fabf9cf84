"""Parse and verify a program or an executable in a text file."""

from dataclasses import dataclass
from pathlib import Path

from pliant.errors import InputError
from pliant.ir.check.executable_check import executable_faults
from pliant.ir.check.program_check import program_faults
from pliant.ir.executable import Executable
from pliant.ir.program import Program
from pliant.ir.text import executable_text, program_text


@dataclass(frozen=True, slots=True)
class TextFile:
    """The content of a file, its canonical text, and its errors by line."""

    kind: str
    value: Program | Executable
    text: str
    faults: tuple[str, ...]


def read_text_file(path: Path) -> TextFile:
    """Read the program or executable at `path`; the first line that starts one decides which.

    Raises InputError naming the file, and the line that cannot be parsed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise InputError(f"{path} cannot be read as text: {error}.") from error
    heads = program_text.HEAD, executable_text.HEAD
    first = next((line for line in text.splitlines() if line.startswith(heads)), None)
    if first is None:
        raise InputError(
            f"{path} has no line that begins with {heads[0].strip()!r} or {heads[1].strip()!r}: give what "
            "pliant plan --explain or pliant inspect --executable prints."
        )
    try:
        return _executable(text) if first.startswith(executable_text.HEAD) else _program(text)
    except InputError as error:
        raise InputError(f"{path}, {error}") from error


def _program(text: str) -> TextFile:
    found = program_text.parse_program(text)
    wrong = (f"line {found.lines[fault.step]}: {fault.reason}" for fault in program_faults(found.program))
    return TextFile("program", found.program, program_text.program_text(found.program), tuple(wrong))


def _executable(text: str) -> TextFile:
    found = executable_text.parse_executable(text)
    value = found.executable
    wrong = (f"line {found.lines[f.kind, f.number]}: {f.reason}" for f in executable_faults(value))
    return TextFile("executable", value, executable_text.executable_text(value), tuple(wrong))
