"""Human units in, SI inside, human units out."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pliant.errors import InputError
from pliant.quantities import format_bytes, format_seconds, format_seconds_up, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20ms", 0.02), ("0.2s", 0.2), (" 1.5 s ", 1.5), ("150us", 150e-6), (2, 2.0), (0.3, 0.3), (1e-7, 1e-7)],
)
def test_durations_are_read_in_the_units_people_write(text: str | float, seconds: float) -> None:
    """A target read wrongly is a promise broken."""
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "n"), [("200KB", 200_000), ("1MB", 10**6), ("1MiB", 2**20), ("0", 0), (512, 512)]
)
def test_sizes_are_read_in_the_units_people_write(text: str | int, n: int) -> None:
    """Decimal and binary units differ by 5 %; both are meant as written."""
    assert parse_bytes(text) == n


@pytest.mark.parametrize("text", ["fast", "20 parsecs", "", "-3ms", "0ms", "1,5s"])
def test_a_bad_duration_is_refused_with_its_value(text: str) -> None:
    """The message must show what was typed."""
    with pytest.raises(InputError, match="time"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["20", " 0.02 ", "2e1"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    """`--latency 20` was meant as milliseconds, promised as 20 seconds, and met."""
    with pytest.raises(InputError, match=f"{text!r} has no unit; give a time such as 20ms"):
        parse_seconds(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), True, b"5ms", [1]])
def test_what_is_no_quantity_is_refused_as_it_was_given(number: Any) -> None:
    """`nans` was nothing that anybody had typed, and bytes were a TypeError from the depths."""
    for parse in (parse_seconds, parse_bytes):
        with pytest.raises(InputError, match=re.escape(f"cannot read {number!r}; give a")):
            parse(number)


def test_a_number_out_of_range_is_refused_as_it_was_given() -> None:
    """What was wrong with it was not that it could not be read."""
    with pytest.raises(InputError, match="a time of -1 is not positive"):
        parse_seconds(-1)
    with pytest.raises(InputError, match="a size of -1 is below 0"):
        parse_bytes(-1)


@pytest.mark.parametrize("parse", [parse_seconds, parse_bytes])
def test_a_quantity_beyond_all_floats_is_refused(parse: Callable[[Any], float]) -> None:
    """Infinity is no target, and an OverflowError no message."""
    unit = "ms" if parse is parse_seconds else "MB"
    for text in (f"1e400{unit}", f"{'9' * 400}{unit}", f"1e308{'min' if unit == 'ms' else unit}"):
        with pytest.raises(InputError, match=f"'{text}' is too large; give a"):
            parse(text)
    for number in (10**400, -(10**5000)):
        with pytest.raises(InputError, match="a number above 1e308 is too large"):
            parse(number)


def test_numbers_of_numpy_are_numbers() -> None:
    """A size is often computed from an array's shape."""
    assert parse_bytes(np.int64(8_000_000)) == 8_000_000  # type: ignore[arg-type]
    assert parse_seconds(np.float64(0.5)) == 0.5


@given(st.floats(1e-6, 1e4))
def test_printed_durations_read_back_to_three_digits(seconds: float) -> None:
    """What a report prints can be fed back as an option."""
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=6e-3)


@given(st.floats(1e-6, 1e4))
def test_an_advised_duration_is_enough(seconds: float) -> None:
    """A target that an error advises would be refused again if it were rounded down."""
    advised_s = parse_seconds(format_seconds_up(seconds))
    assert seconds * (1 - 1e-12) <= advised_s <= seconds * 1.0101


@given(st.integers(0, 10**12))
def test_printed_sizes_read_back_to_three_digits(n: int) -> None:
    """What a report prints can be fed back as an option."""
    assert parse_bytes(format_bytes(n)) == pytest.approx(n, rel=6e-3)
