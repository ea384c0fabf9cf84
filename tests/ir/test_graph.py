"""Attributes of a node are read by the getter of their kind."""

import numpy as np
import pytest

from pliant.errors import GraphError
from pliant.ir.graph import Attribute, Node


def _with(**attributes: Attribute) -> Node:
    return Node("Conv", (), ("y",), attributes, "c1")


def test_getters_of_attributes_give_values_of_their_kind() -> None:
    """Rules read attributes by kind, and get the default only where there is none."""
    array = np.ones(2)
    node = _with(n=3, list=(1, 2), x=0.5, word="relu", none=0, t=array, e=())
    assert (node.integer("n"), node.integer("absent", 7), node.integer("absent", None)) == (3, 7, None)
    assert (node.integers("list"), node.integers("e", (9,)), node.integers("absent", None)) == (
        (1, 2),
        (),
        None,
    )
    assert (node.real("x"), node.real("n"), node.real("absent", 1.0)) == (0.5, 3.0, 1.0)
    assert (node.reals("list"), node.texts("e"), node.text("word")) == ((1, 2), (), "relu")
    assert (node.flag("n"), node.flag("none", True), node.flag("absent"), node.flag("absent", True)) == (
        *(True, False),
        *(False, True),
    )
    assert node.array("t") is array


@pytest.mark.parametrize("getter", ["integer", "integers", "real", "reals", "text", "texts", "array", "flag"])
def test_an_attribute_of_another_kind_is_named_with_its_node(getter: str) -> None:
    """A model from a careless exporter must be refused with the place to look at."""
    wrong = _with(axis=(1, "a"), t=2.5 if getter in ("text", "array") else "x")
    with pytest.raises(
        GraphError, match=r"node 'c1' \(Conv\): its attribute 'axis' is \(1, 'a'\), but must be"
    ):
        getattr(wrong, getter)("axis")
    if getter != "text":
        with pytest.raises(GraphError, match=r"'t' is .*, but must be"):
            getattr(wrong, getter)("t")


def test_a_required_attribute_that_is_absent_is_named() -> None:
    """Without a default an absent attribute is an error of the model, not a KeyError of ours."""
    with pytest.raises(
        GraphError, match=r"node 'c1' \(Conv\) lacks its attribute 'k', which must be an integer"
    ):
        _with().integer("k")
