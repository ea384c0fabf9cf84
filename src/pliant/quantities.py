"""Human units in and out: `200ms`, `1MB`. Knows nothing of what is measured."""

import re

from pliant.errors import InputError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_seconds(text: str | float) -> float:
    """`"20ms"` -> 0.02; a bare number is seconds. Raises InputError unless positive."""
    value = _parse(text, _SECONDS, "s", "a latency such as 20ms or 0.2s")
    if not value > 0:
        raise InputError(f"a latency of {text} cannot be met; give a positive duration such as 20ms.")
    return value


def parse_bytes(text: str | float) -> int:
    """`"200KB"` -> 200000; a bare number is bytes. Raises InputError on anything that is not a size >= 0."""
    return int(_parse(text, _BYTES, "B", "a size such as 200KB or 1MB"))


def format_seconds(seconds: float) -> str:
    """Three significant digits in s, ms or µs: 0.0213 -> `21.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_bytes(n: float) -> str:
    """Three significant digits in decimal units: 221184 -> `221 KB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(n) >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} B"


def _parse(text: str | float, units: dict[str, float] | dict[str, int], bare: str, wanted: str) -> float:
    if isinstance(text, int | float):
        text = f"{text}"
    match = _QUANTITY.fullmatch(text)
    unit = (match[2] or bare) if match else ""
    if match is None or unit not in units:
        raise InputError(f"cannot read {text!r}; give {wanted} (units: {', '.join(units)}).")
    return float(match[1]) * units[unit]
