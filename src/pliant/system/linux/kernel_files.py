"""Read the small text files in which the kernel reports its state."""

from pathlib import Path

PROC = Path("/proc/self")


def kernel_text(path: Path) -> str | None:
    """The text of a file, without white space around it; None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def kernel_number(path: Path) -> int | None:
    """The number in a file; None where it cannot be read or holds anything else."""
    text = kernel_text(path)
    return int(text) if text is not None and text.isdigit() else None


def field_of(text: str, name: str) -> str:
    """The value of the first line `name: value`, empty if there is none."""
    return next((row.partition(":")[2].strip() for row in text.splitlines() if row.startswith(name)), "")
