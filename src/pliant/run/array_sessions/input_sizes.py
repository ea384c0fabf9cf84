"""The length of an input of a model on arrays, and the shapes of an input of a given length."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from pliant.ir.port import Port
from pliant.run.session.ports import Shapes, symbols


def length_port(inputs: Sequence[Port]) -> Port | None:
    """The first tensor with open dimensions, which gives the length; None if all shapes are fixed."""
    return next((port for port in inputs if port.element is None and any(symbols(port))), None)


def input_length(inputs: Sequence[Port], arrays: Mapping[str, Any]) -> int:
    """The product of the open dimensions of `length_port`; 1 without one."""
    port = length_port(inputs)
    if port is None:
        return 1
    return prod(n for s, n in zip(symbols(port), arrays[port.name].shape, strict=True) if s is not None)


def shapes_of_length(inputs: Sequence[Port], length: int) -> Shapes:
    """Shapes in which the last open dimension of each input is `length`; equal names have equal sizes, and
    other open dimensions have 1.
    """
    sizes: dict[str, int] = {}
    for port in inputs:
        last = [s for s in symbols(port) if s is not None][-1:]
        sizes |= dict.fromkeys(last, max(1, length))
    return {
        port.name: tuple(
            d if isinstance(d, int) else sizes.get(s or "", 1)
            for s, d in zip(symbols(port), port.dims or (), strict=True)
        )
        for port in inputs
    }
