"""Compact text forms that several guards share: digests, spans with rounded times, programs by digest."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256

from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.image_executable import image_executable
from pliant.ir.check.executable_check import executable_faults
from pliant.ir.check.program_check import program_faults
from pliant.ir.cost import Span
from pliant.ir.program import Program, Step
from pliant.ir.text.executable_text import executable_text, parse_executable
from pliant.ir.text.program_text import parse_program, program_text
from pliant.plan.plan import Plan


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


def checked_text(program: Program) -> str:
    """The text of a program that parses back and has no faults, with latest starts to the microsecond.

    Rounding leaves out what the order of a floating-point sum changes.
    """
    assert parse_program(program_text(program)).program == program
    assert not list(program_faults(program))
    segments = (replace(s, steps=tuple(map(_rounded, s.steps))) for s in program.segments)
    return program_text(replace(program, segments=tuple(segments)))


def checked_executable(image: Image) -> str:
    """The text of an executable that parses back and has no faults.

    Digests of constants are left out: folding rounds as the machine does.
    """
    executable = image_executable(image)
    text = executable_text(executable)
    assert parse_executable(text).executable == executable
    assert (found := [*executable_faults(executable)]) == [], found[0]
    return text


def _rounded(step: Step) -> Step:
    latest_s = step.latest_start_s
    return step if latest_s is None else replace(step, latest_start_s=round(latest_s, 6))


def digests(program: Program, spans: Iterable[Span]) -> str:
    """The digests of a program's text and of its spans' text, for cases that are not printed in clear."""
    return f"program {digest(checked_text(program))} spans {digest(spans_text(spans))}"


def plan_text(plan: Plan) -> str:
    """Every number of a plan that guards compare, exactly: bits of every shard, AIBs, bytes, reasons."""
    target = f"target {plan.budget.target_s * 1e3:.1f} ms, preload {plan.budget.preload_bytes} B"
    limit = plan.budget.working_bytes
    most = "" if limit is None else f"at most {limit} B, "
    lines = [
        f"{plan.name}: {plan.n}x{plan.width} of {plan.shape.n_layers}x{plan.shape.n_slices}, {target}",
        f"  predicted {plan.latency_s * 1e3:.2f} ms (95 % under {plan.latency_p95_s * 1e3:.2f} ms): compute "
        f"{plan.compute_s * 1e3:.2f} ms, IO {plan.io_s * 1e3:.2f} ms, waits {plan.wait_s * 1e3:.2f} ms",
        f"  weights {plan.memory.preload_bytes} B preloaded + {plan.memory.working_bytes} B working "
        f"({most}window of {plan.window} layers)",
        *_accuracy_lines(plan),
        "  layer  bits of each slice (held before the run)       reads [B]  AIB before  after [ms]",
    ]
    for k, layer in enumerate(plan.layers):
        cells = " ".join(_cell(b, h) for b, h in zip(plan.bits[k], plan.held[k], strict=True))
        aib = f"{plan.aib_start_s[k] * 1e3:10.3f} {plan.aib_s[k] * 1e3:10.3f}"
        lines.append(f"  {layer:5d}  {cells:<48} {plan.load_bytes(k):10d} {aib}")
    lines += [f"  - {reason}" for reason in plan.reasons]
    return "\n".join(lines) + "\n"


def _accuracy_lines(plan: Plan) -> Iterator[str]:
    """What share of answers is expected to be right, where that is known."""
    interval = plan.accuracy_interval
    if plan.expected_accuracy is not None and interval is not None:
        yield (
            f"  expected accuracy {100 * plan.expected_accuracy:.1f} % (95 % interval "
            f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %)"
        )


def _cell(bits: int, held: int) -> str:
    """`6(2)`: runs with 6 bits, 2 planes of them held; `6*`: all of them held; `6`: all of them read."""
    if held >= bits:
        return f"{bits}*"
    return f"{bits}({held})" if held else f"{bits}"
