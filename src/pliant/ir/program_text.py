"""A program as stable text, for people and golden files."""

from pliant.ir.program import Program, Step


def program_text(program: Program) -> str:
    """One line a tensor, a segment and a step; equal programs give equal text."""
    lines = ["program " + (" ".join(program.extents) or "(bound)")]
    for t in program.tensors:
        shape = ", ".join(str(d) for d in t.shape)
        lines.append(f"tensor {t.name} [{shape}] x {t.itemsize} B, lives for the run")
    for s, segment in enumerate(program.segments):
        lines.append(f"segment {s}" + (f" keeps {' '.join(segment.live)}" if segment.live else ""))
        lines += [_step_line(i, step) for i, step in enumerate(segment.steps)]
    return "\n".join(lines) + "\n"


def _step_line(i: int, step: Step) -> str:
    line = f"{i:4d} {step.lane:<4} {step.work}"
    if step.after:
        line += " after " + " ".join(map(str, step.after))
    if step.prefer:
        line += " prefer " + " ".join(map(str, step.prefer))
    if step.latest_start_s is not None:
        line += f" until {step.latest_start_s * 1e3:.3f} ms"
    return line
