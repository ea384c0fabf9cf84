"""Expressions as trees and as text."""

import pytest

from pliant.errors import KernelError
from pliant.kernels.emit.expression import choose, constant, inputs, leaf, parse, replace_inputs, size


def test_text_and_tree_say_the_same() -> None:
    """A fused node carries the text; the kernel is made from the tree."""
    x, y = leaf(0, "float32"), leaf(1, "float32")
    tree = choose(x.compare("lt", 0), x * y + 1e-12, (x / y).to("exp").cast("float32"))
    again = parse(str(tree))
    assert again == tree
    assert str(again) == str(tree)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), 1e-45, -0.0, 3.4e38])
def test_constants_keep_every_bit(number: float) -> None:
    """Infinities too; NaN is no number to be equal."""
    assert str(parse(str(constant(number, "float32")))) == str(constant(number, "float32"))


def test_integers_are_written_as_integers() -> None:
    """2**63 - 1 is no float64."""
    largest = constant(2**63 - 1, "int64")
    assert str(largest) == "9223372036854775807:int64"
    assert parse(str(largest)) == largest


def test_what_is_no_expression_is_refused() -> None:
    """A damaged text names itself."""
    for text in (
        "",
        "(",
        "x0",
        "(add:float32)",
        "(add:float32 x0:float32",
        "x0:float32 x1:float32",
        "y:int8",
    ):
        with pytest.raises(KernelError, match="no expression"):
            parse(text)


def test_inputs_and_size_of_a_tree() -> None:
    """Inputs by number with their dtypes; a leaf is no operation."""
    tree = leaf(2, "int32").cast("float32") * leaf(0, "float32")
    assert inputs(tree) == {0: "float32", 2: "int32"}
    assert size(tree) == 2
    assert replace_inputs(tree, {2: leaf(1, "int32")}) == leaf(1, "int32").cast("float32") * leaf(
        0, "float32"
    )


def test_an_unknown_dtype_is_refused() -> None:
    """Strings have no kernel."""
    with pytest.raises(KernelError, match="kernels exist for"):
        leaf(0, "object")
