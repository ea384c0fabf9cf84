"""Parse and format human units: `200ms`, `1MB`."""

import re
from decimal import ROUND_CEILING, Context
from math import isfinite
from numbers import Integral, Real

from pliant.errors import InputError

_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_BYTES = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?)\s*([A-Za-zµ]*)\s*")


def parse_seconds(text: str | float) -> float:
    """`"20ms"` -> 0.02; a number, not text, is seconds.

    Text without a unit is refused: `--latency 20` was meant as milliseconds and taken as seconds. Raises
    InputError for that, and unless the time is positive.
    """
    value = _parse(text, _SECONDS, "s", "a time such as 20ms or 0.2s", needs_unit=True)
    if not value > 0:
        raise InputError(f"a time of {text} is not positive; give one such as 20ms.")
    return value


def parse_bytes(text: str | float) -> int:
    """`"200KB"` -> 200000; a number without a unit is bytes.

    Raises InputError on anything that is not a size of 0 or more.
    """
    value = _parse(text, _BYTES, "B", "a size such as 200KB or 1MB")
    if value < 0:
        raise InputError(f"a size of {text} is below 0; give one such as 200KB.")
    return int(value)


def check_whole(value: object, name: str) -> None:
    """Raise InputError unless `value`, called `name` in the message, is a whole number."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"{name} is {value!r}; give a whole number, such as 16.")


def format_seconds(seconds: float) -> str:
    """Three significant digits in s, ms or µs: 0.0213 -> `21.3 ms`."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def format_seconds_up(seconds: float) -> str:
    """As `format_seconds`, rounded up: a limit that a message advises must be enough."""
    return format_seconds(float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(float(seconds)))))


def format_bytes(n: float) -> str:
    """Three significant digits in decimal units: 221184 -> `221 KB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if abs(n) >= scale:
            return f"{n / scale:.3g} {unit}"
    return f"{n:.0f} B"


def _parse(
    text: str | float,
    units: dict[str, float] | dict[str, int],
    si: str,
    wanted: str,
    needs_unit: bool = False,
) -> float:
    """The quantity in the unit `si`, which a number is in, and text without a unit unless it needs one."""
    if isinstance(text, Real) and not isinstance(text, bool):
        try:
            value = float(text)
        except OverflowError as e:  # the message leaves its hundreds of digits out
            raise InputError("a number above 1e308 is too large; give a smaller one.") from e
        if isfinite(value):
            return value
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) else None
    if match and not match[2] and needs_unit:
        raise InputError(f"{text!r} has no unit; give {wanted} (units: {', '.join(units)}).")
    unit = (match[2] or si) if match else ""
    if match is None or unit not in units:
        raise InputError(f"cannot read {text!r}; give {wanted} (units: {', '.join(units)}).")
    value = float(match[1]) * units[unit]
    if not isfinite(value):
        raise InputError(f"{text!r} is too large; give {wanted}.")
    return value
