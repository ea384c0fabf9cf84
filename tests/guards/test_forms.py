"""What guards compare: shapes of JSON, types and signatures as text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Optional

from tests.guards.forms import shape_of, shown_signature, shown_type


def test_a_shape_keeps_keys_and_types_and_no_values() -> None:
    """Two runs print other numbers."""
    assert shape_of({"a": 1, "b": [0.5, 0.25], "c": None, "d": True}) == {
        "a": "int", "b": ["float"], "c": "null", "d": "bool",
    }  # fmt: skip


def test_a_list_is_the_union_of_what_it_holds() -> None:
    """A key that only some objects have is marked; a list that is empty once does not hide the others."""
    rows = [{"a": 1, "b": []}, {"a": 0.5, "b": [1], "c": None}]
    assert shape_of(rows) == [{"a": "float|int", "b": ["int"], "c?": "null"}]
    assert shape_of([1, {"a": 1}]) == [{"any of": [{"a": "int"}, "int"]}]
    assert shape_of([]) == ["nothing"]


def test_an_object_whose_keys_are_data_has_none() -> None:
    """Names of kernels differ from CPU to CPU."""
    assert shape_of({"kernels": {"gemm": 1, "map": 2}}, maps=("kernels",)) == {"kernels": {"*": "int"}}


def test_a_type_is_shown_without_its_module() -> None:
    """A move of a module is no change of a signature."""
    assert shown_type(Optional[Path]) == "Path | None"  # noqa: UP045 - both spellings are in use
    assert shown_type(Mapping[str, tuple[int, ...]]) == "Mapping[str, tuple[int, ...]]"
    assert shown_type(Literal["a", "b"] | None) == "a|b | None"


def test_a_signature_shows_order_kinds_types_and_defaults() -> None:
    """All that a caller can depend on."""

    def example(a: int, *more: Path, b: str | None = None, **rest: float) -> list[Path]:
        raise NotImplementedError

    shown = "(a: int, *more: Path, b: str | None = None, **rest: float) -> list[Path]"
    assert shown_signature(example) == shown
