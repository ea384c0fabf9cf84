"""Compact text forms that several guards share: digests, spans with rounded times, programs by digest."""

from collections.abc import Iterable
from hashlib import sha256

from pliant.ir.cost import Span
from pliant.ir.program import Program
from pliant.ir.program_text import program_text


def digest(text: str) -> str:
    """The first 16 hexadecimal digits of the text's SHA-256."""
    return sha256(text.encode()).hexdigest()[:16]


def spans_text(spans: Iterable[Span]) -> str:
    """One line a span: step, lane, start and end in seconds rounded to 9 digits, and its state unless it ran.

    Rounding leaves out what the order of a floating-point sum changes.
    """
    lines = []
    for s in spans:
        state = "" if s.state.value == "ran" else f" {s.state.value}"
        lines.append(f"{s.step:4d} {s.lane:<4} {s.start_s:.9f} {s.end_s:.9f}{state}")
    return "\n".join(lines) + "\n"


def digests(program: Program, spans: Iterable[Span]) -> str:
    """The digests of a program's text and of its spans' text, for cases that are not printed in clear."""
    return f"program {digest(program_text(program))} spans {digest(spans_text(spans))}"
