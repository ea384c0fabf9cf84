"""The option `--weights`: the bits in which an ONNX model's weights are kept."""

from typing import TYPE_CHECKING, Annotated

import typer

from pliant.errors import InputError

if TYPE_CHECKING:  # it comes with the compiler, which few verbs need
    from pliant.ir.bitwidths import WeightFormat

WeightBits = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Weights of an ONNX model's products: fp32, 8 bits, codes of 1..6 bits, or auto: the "
        "most that fits --memory.",
        show_default="fp32",
    ),
]


def parse_weights(text: str | None) -> "WeightFormat":
    """`"fp32"`, `"auto"` or `"6"` -> the same, or 6; raises InputError for what is none of these."""
    if text is None or text == "fp32":
        return "fp32"
    if text == "auto":
        return "auto"
    if not text.isdecimal():
        raise InputError(f"--weights {text!r}: give fp32, 8 or 1 to 6 bits, or auto for what fits --memory.")
    return int(text)
