"""The windows of convolutions and pools: strides, dilations, borders and output extents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pliant.errors import GraphError
from pliant.ir.graph import Attribute

AXES = ("d", "h", "w")


@dataclass(frozen=True, slots=True)
class Window:
    """Each field has one number a spatial dimension, of which there are 1 to 3."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def extents(self) -> tuple[int, ...]:
        """Span of the window over the input."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def fields(self) -> dict[str, int]:
        """As kernels are told: `stride_d`, ..., `pad_w`, `kernel_d`, ..."""
        return {
            **along("stride", self.strides, 1),
            **along("dilation", self.dilations, 1),
            **along("pad", self.begins, 0),
            **along("kernel", self.kernel, 1),
        }


def along(name: str, numbers: Sequence[int], otherwise: int) -> dict[str, int]:
    """`name_d`, `name_h`, `name_w` of 1 to 3 numbers, `otherwise` in front."""
    padded = (otherwise,) * (3 - len(numbers)) + tuple(numbers)
    return {f"{name}_{axis}": n for axis, n in zip(AXES, padded, strict=True)}


def window(attributes: Mapping[str, Attribute], kernel: Sequence[int], extents: Sequence[int]) -> Window:
    """ONNX's `strides`, `dilations`, `pads` and `auto_pad` for an input of `extents`.

    Raises GraphError for more than three spatial dimensions or attributes of another length.
    """
    rank = len(kernel)
    strides = numbers(attributes, "strides", (1,) * rank)
    dilations = numbers(attributes, "dilations", (1,) * rank)
    pads = numbers(attributes, "pads", (0,) * (2 * rank))
    if not 1 <= rank <= 3 or len(extents) != rank:
        raise GraphError(
            f"a window over {len(extents)} dimensions with a {rank}-d kernel: 1 to 3 are supported."
        )
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank):
        raise GraphError(
            f"strides {strides}, dilations {dilations} or pads {pads} do not fit {rank} dimensions."
        )
    mode = attributes.get("auto_pad", "NOTSET")
    begins, ends = pads[:rank], pads[rank:]
    if mode == "VALID":
        begins = ends = (0,) * rank
    elif mode in ("SAME_UPPER", "SAME_LOWER"):
        total = tuple(
            max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)
            for n, s, k, d in zip(extents, strides, kernel, dilations, strict=True)
        )
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begins, ends = (less, more) if mode == "SAME_UPPER" else (more, less)
    return Window(tuple(kernel), strides, dilations, begins, ends)


def numbers(attributes: Mapping[str, Attribute], name: str, otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """An attribute that is a list of integers. Raises GraphError for another kind."""
    value = attributes.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, tuple) or not all(isinstance(n, int) for n in value):
        raise _wrong(name, value, "a list of integers")
    return tuple(int(n) for n in value)


def integer(attributes: Mapping[str, Attribute], name: str, otherwise: int) -> int:
    """An attribute that is one integer. Raises GraphError for another kind."""
    value = attributes.get(name, otherwise)
    if not isinstance(value, int):
        raise _wrong(name, value, "an integer")
    return value


def real(attributes: Mapping[str, Attribute], name: str, otherwise: float) -> float:
    """An attribute that is one number. Raises GraphError for another kind."""
    value = attributes.get(name, otherwise)
    if not isinstance(value, int | float):
        raise _wrong(name, value, "a number")
    return float(value)


def reals(attributes: Mapping[str, Attribute], name: str, otherwise: tuple[float, ...]) -> tuple[float, ...]:
    """An attribute that is a list of numbers. Raises GraphError for another kind."""
    value = attributes.get(name, otherwise)
    if not isinstance(value, tuple) or not all(isinstance(n, int | float) for n in value):
        raise _wrong(name, value, "a list of numbers")
    return tuple(float(n) for n in value)


def texts(attributes: Mapping[str, Attribute], name: str, otherwise: tuple[str, ...]) -> tuple[str, ...]:
    """An attribute that is a list of strings. Raises GraphError for another kind."""
    value = attributes.get(name, otherwise)
    if not isinstance(value, tuple) or not all(isinstance(n, str) for n in value):
        raise _wrong(name, value, "a list of strings")
    return tuple(str(n) for n in value)


def text(attributes: Mapping[str, Attribute], name: str, otherwise: str) -> str:
    """An attribute that is a string. Raises GraphError for another kind."""
    value = attributes.get(name, otherwise)
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def _wrong(name: str, value: object, wanted: str) -> GraphError:
    return GraphError(f"its attribute {name!r} is {value!r}, but must be {wanted}.")
