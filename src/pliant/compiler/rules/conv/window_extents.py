"""The windows of convolutions and pools: strides, dilations, borders and output extents."""

from collections.abc import Sequence
from dataclasses import dataclass

from pliant.errors import GraphError
from pliant.ir.graph import Node

AXES = ("d", "h", "w")


@dataclass(frozen=True, slots=True)
class Window:
    """Each field has one number for each of 1 to 3 spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    def extents(self) -> tuple[int, ...]:
        """Span of the window over the input."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    def fields(self) -> dict[str, int]:
        """The window as kernel arguments: `stride_d`, ..., `pad_w`, `kernel_d`, ..."""
        return {
            **axis_fields("stride", self.strides, 1),
            **axis_fields("dilation", self.dilations, 1),
            **axis_fields("pad", self.begins, 0),
            **axis_fields("kernel", self.kernel, 1),
        }


def axis_fields(name: str, numbers: Sequence[int], otherwise: int) -> dict[str, int]:
    """`name_d`, `name_h`, `name_w` of 1 to 3 numbers, `otherwise` in front."""
    padded = (otherwise,) * (3 - len(numbers)) + tuple(numbers)
    return {f"{name}_{axis}": n for axis, n in zip(AXES, padded, strict=True)}


def window(node: Node, kernel: Sequence[int], extents: Sequence[int]) -> Window:
    """ONNX's `strides`, `dilations`, `pads` and `auto_pad` for an input of `extents`.

    Raises GraphError for more than three spatial dimensions or attributes of another length.
    """
    rank = len(kernel)
    strides = node.integers("strides", (1,) * rank)
    dilations = node.integers("dilations", (1,) * rank)
    pads = node.integers("pads", (0,) * (2 * rank))
    if not 1 <= rank <= 3 or len(extents) != rank:
        raise GraphError(
            f"a window over {len(extents)} dimensions with a {rank}-d kernel: 1 to 3 are supported."
        )
    if (len(strides), len(dilations), len(pads)) != (rank, rank, 2 * rank):
        raise GraphError(
            f"strides {strides}, dilations {dilations} or pads {pads} do not fit {rank} dimensions."
        )
    mode = node.text("auto_pad", "NOTSET")
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
