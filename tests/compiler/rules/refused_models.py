"""Models that no kernel may be called for, and how they are refused; run as a module it prints refusals.

As a module it may run under `python -O`, where assertions are gone.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np
from onnx import numpy_helper

from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import make_image
from pliant.compiler.passes.passes import simplify
from pliant.compiler.rules.rules import RULES, lower
from pliant.errors import PliantError
from pliant.ir.graph import Attribute, Graph, Node, TensorType
from pliant.kernels.emit.isa import AVX2
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.one_graph import bind
from tests.models.onnx_models import parse

FLOATS = TensorType("float32", (4, 6))


def _graph(
    op: str,
    attributes: Mapping[str, Attribute],
    out: tuple[int, ...] = (4, 6),
    constants: Mapping[str, np.ndarray] | None = None,
    n_outputs: int = 1,
    shape: tuple[int, ...] = (4, 6),
) -> Callable[[], None]:
    """Lower one node of a graph made by hand, which no checker of ONNX has seen."""
    given = dict(constants or {})
    outputs = tuple(f"y{i}" for i in range(n_outputs))
    node = Node(op, ("x", *given), outputs, attributes, "wild")
    types = {"x": TensorType("float32", shape)} | {y: TensorType("float32", out) for y in outputs}
    types |= {x: TensorType(str(a.dtype), a.shape) for x, a in given.items()}

    def attempt() -> None:
        lower(Graph((node,), ("x",), outputs, types, given), Target(AVX2))

    return attempt


def _model(text: str, functions: str = "", **weights: np.ndarray) -> Callable[[], None]:
    """Bind, simplify and lower an ONNX model."""

    def attempt() -> None:
        proto = parse(text, opset=19, functions=functions)
        proto.graph.initializer.extend(numpy_helper.from_array(a, x) for x, a in weights.items())
        model = open_onnx(proto)
        shapes = {p.name: tuple(d for d in p.dims or () if isinstance(d, int)) for p in model.inputs}
        make_image(simplify(bind(model, {}, supported=RULES, shapes=shapes)), Target(AVX2))

    return attempt


_FUNCTION = '<opset_import: ["": 19], domain: "local"> f <k> (a, b) => (c) '

CASES: Mapping[str, tuple[Callable[[], None], str]] = {
    "perm": (_graph("Transpose", {"perm": (7, 0)}), "not an order of the 2 dimensions"),
    "perm twice": (_graph("Transpose", {"perm": (0, 0)}, (4, 4)), "not an order of the 2 dimensions"),
    "perm kind": (_graph("Transpose", {"perm": 1}), "'perm' is 1, but must be a list of integers"),
    "concat axis": (_graph("Concat", {"axis": 5}, (4, 12), {"b": np.ones((4, 6), np.float32)}), "the axis 5"),
    "concat size": (
        _graph("Concat", {"axis": 1}, (4, 8), {"b": np.ones((4, 6), np.float32)}),
        "no positions",
    ),
    "split": (_graph("Split", {"axis": 1}, (4, 4), n_outputs=2), "no positions 4 to 7 of axis 1"),
    "expand": (_graph("Expand", {}, (4, 5), {"s": np.int64([4, 5])}), "does not broadcast"),
    "tile": (_graph("Tile", {}, (8, 6), {"r": np.int64([2])}), "cannot do with these shapes"),
    "no starts": (_graph("Slice", {}), "lacks input 1"),
    "slice axis": (
        _graph("Slice", {}, constants={"s": np.int64([0]), "e": np.int64([1]), "a": np.int64([9])}),
        "cannot do with these shapes",
    ),
    "blocksize": (_graph("DepthToSpace", {"blocksize": 0}, shape=(1, 4, 2, 2)), "blocksize 0"),
    "blocks": (_graph("DepthToSpace", {"blocksize": 3}, shape=(1, 4, 2, 2)), "cannot be split"),
    "pad mode": (
        _graph("Pad", {"mode": "mirror"}, (6, 8), {"p": np.int64([1, 1, 1, 1])}),
        "mode 'mirror'; there are constant, edge",
    ),
    "pad size": (_graph("Pad", {}, (5, 6), {"p": np.int64([3, 0, 0, 0])}), "no positions 3 to 6 of axis 0"),
    "cumsum axis": (_graph("CumSum", {}, constants={"a": np.array(4)}), r"the axis \[4\], but 2"),
    "top k": (_graph("TopK", {"axis": -5}, constants={"k": np.int64([1])}), "the axis -5"),
    "units": (
        _graph("Hardmax", {"axis": -1}, (1 << 29, 1), shape=(1 << 29, 1)),
        "units of work are more than the 268435455",
    ),
    "reduction": (
        _model(
            'g (float[4] x, float[2] u) => (float[4] y) { y = ScatterND <reduction = "mean"> (x, i, u) }',
            i=np.int64([[0], [1]]),
        ),
        "the reduction 'mean'",
    ),
    "nearest mode": (
        _model(
            'g (float[1,1,2,2] x) => (float[1,1,4,4] y) { y = Resize <nearest_mode = "up"> (x, , s) }',
            s=np.float32([1, 1, 2, 2]),
        ),
        "the nearest_mode 'up'",
    ),
    "roi": (
        _model(
            "g (float[1,1,2,2] x) => (float[1,1,4,4] y) { "
            'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, s) }',
            s=np.float32([1, 1, 2, 2]),
            r=np.float32([0]),
        ),
        "1 numbers as roi; give 8",
    ),
    "window": (
        _model(
            "g (float[1,64,1] x) => (float[a,b,c,2] y) { y = STFT (x, s, w) }",
            s=np.array(8),
            w=np.array(1, np.float32),
        ),
        "it must be a vector",
    ),
    "block axis": (
        _model(
            "g (float[3,4] x, float[3,2] s) => (uint8[3,4] y) { y = QuantizeLinear <axis = 2> (x, s) }",
        ),
        "'s' is float32",
    ),
    "function's attribute": (
        _model(
            'g (float[1,4,4,4] x, float[4,4,1,1] w) => (float[1,4,4,4] y) { y = local.f <k = "a"> (x, w) }',
            _FUNCTION + "{ c = Conv <group: int = @k> (a, b) }",
        ),
        "attribute 'group' is of kind string, but must be int",
    ),
    "positions": (
        _model("g (float[8,4] x) => (float[3,4] y) { y = Gather (x, i) }", i=np.int64([0, 7, 8])),
        "entries 0 to 8 of 'x', which has 8",
    ),
    "reshape": (_graph("Reshape", {}, (5, 5), {"s": np.int64([5, 5])}), "cannot do with these shapes"),
    "reshape too long": (
        _model("g (float[4,6] x) => (float[5,5] y) { y = Reshape (x, s) }", s=np.int64([5, 5])),
        "of 24 elements, but .5, 5. has 25",
    ),
    "reshape too short": (
        _model("g (float[2,6] x) => (float[1,6] y) { t = Relu (x) y = Reshape (t, s) }", s=np.int64([1, 6])),
        "of 12 elements, but .1, 6. has 6",
    ),
    "compress": (
        _model(
            "g (float[3,1] x) => (float[3,a] y) { y = Compress <axis = 1> (x, c) }",
            c=np.array([False, True]),
        ),
        "keeps position 1 of 1; give one of at most 1 entries",
    ),
    "no steps": (
        _model(
            "g (float[0,2,3] x, float[1,16,3] w, float[1,16,4] r) => (float[0,1,2,4] y) "
            "{ y = LSTM <hidden_size = 4> (x, w, r) }"
        ),
        "which has nothing to read",
    ),
}
"""By name: an attempt, and what the GraphError says."""


def refusals() -> dict[str, str]:
    """What each case raises, as text; "" for nothing."""
    found = {}
    for name, (attempt, _) in CASES.items():
        try:
            attempt()
            found[name] = ""
        except PliantError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print(json.dumps({"assertions": __debug__, "refusals": refusals()}))
