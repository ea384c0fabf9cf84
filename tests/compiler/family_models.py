"""Small ONNX models that together touch every kernel family, with sizes that leave tails. Knows no CPU."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from onnx import numpy_helper

from pliant.models.onnx.onnx_file import open_onnx
from tests.models.onnx_models import parse

Weight = tuple[int, ...] | np.ndarray


@dataclass(frozen=True)
class Model:
    """ONNX's textual form, and weights: arrays, or shapes of random floats."""

    text: str
    weights: Mapping[str, Weight] = field(default_factory=dict)
    opset: int = 21


def model_of(name: str) -> Any:
    """The model as pliant opens it."""
    return open_onnx(proto_of(name))


def proto_of(name: str) -> Any:
    """The model as an exporter would write it."""
    return written(MODELS[name])


def written(model: Model) -> Any:
    """A model as an exporter would write it."""
    made = parse(model.text, model.opset)
    for i, (weight, value) in enumerate(model.weights.items()):
        array = value if isinstance(value, np.ndarray) else _random("float32", value, i) * np.float32(0.3)
        made.graph.initializer.append(numpy_helper.from_array(array, weight))
    return made


def feeds_of(name: str) -> dict[str, np.ndarray]:
    """The same numbers every time; masks and indices, whose names begin so, are small whole numbers."""
    feeds = {}
    for i, port in enumerate(model_of(name).inputs):
        shape = tuple(d for d in port.dims or () if isinstance(d, int))
        feeds[port.name] = _random(port.dtype, shape, 100 + i, port.name)
    return feeds


def _random(dtype: str, shape: tuple[int, ...], seed: int, name: str = "") -> np.ndarray:
    random = np.random.default_rng(seed)
    if name.startswith("mask"):
        return (random.random(shape) > 0.3).astype(dtype)
    if name.startswith("index"):
        return random.integers(0, 5, shape).astype(dtype)
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        return random.standard_normal(shape).astype(getattr(ml_dtypes, dtype, dtype))
    if dtype == "bool":
        return random.random(shape) > 0.5
    limits = np.iinfo(dtype)
    return random.integers(max(limits.min, -300), min(limits.max, 300) + 1, shape).astype(dtype)


def _bytes(dtype: str, *shape: int) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).integers(limits.min, limits.max + 1, shape).astype(dtype)


def bert(n_layers: int = 2, width: int = 48, heads: int = 4, ffn: int = 96) -> Model:
    """Embeddings, layers with masked attention and GELU by erf, as torch exports them."""
    weights: dict[str, Weight] = {"words": (50, width), "places": (1, 19, width)}
    lines = [
        "e = Gather (words, index)",
        "s = Add (e, places)",
        "m = Cast <to = 1> (mask)",
        "h = Sub (one, m)",
        "hidden = Mul (h, big)",
    ]
    weights |= {
        "one": np.array(1.0, np.float32),
        "big": np.array(-3.4e38, np.float32),
        "two": np.array(2.0, np.float32),
        "half": np.array(0.5, np.float32),
        "root": np.array(2.0**0.5, np.float32),
        "scale": np.array((width / heads) ** 0.5, np.float32),
        "split": np.array([2, 19, heads, width // heads]),
        "merge": np.array([2, 19, width]),
    }

    def dense(x: str, y: str, n_in: int, n_out: int) -> list[str]:
        weights[f"{y}w"], weights[f"{y}b"] = (n_in, n_out), (n_out,)
        return [f"{y}p = MatMul ({x}, {y}w)", f"{y} = Add ({y}b, {y}p)"]

    def norm(x: str, y: str) -> list[str]:
        weights[f"{y}g"], weights[f"{y}n"] = (width,), (width,)
        return [f"{y} = LayerNormalization <axis = -1, epsilon = 1e-12> ({x}, {y}g, {y}n)"]

    lines += norm("s", "x0")
    for i in range(n_layers):
        x = f"x{i}"
        for part in "qkv":
            lines += dense(x, f"{part}{i}", width, width)
            lines += [f"{part}s{i} = Reshape ({part}{i}, split)"]
            perm = "0, 2, 3, 1" if part == "k" else "0, 2, 1, 3"
            lines += [f"{part}t{i} = Transpose <perm = [{perm}]> ({part}s{i})"]
        lines += [
            f"sc{i} = MatMul (qt{i}, kt{i})",
            f"sd{i} = Div (sc{i}, scale)",
            f"sm{i} = Add (sd{i}, hidden)",
            f"p{i} = Softmax <axis = -1> (sm{i})",
            f"c{i} = MatMul (p{i}, vt{i})",
            f"ct{i} = Transpose <perm = [0, 2, 1, 3]> (c{i})",
            f"cm{i} = Reshape (ct{i}, merge)",
            *dense(f"cm{i}", f"o{i}", width, width),
            f"r{i} = Add (o{i}, {x})",
            *norm(f"r{i}", f"a{i}"),
            *dense(f"a{i}", f"f{i}", width, ffn),
            f"fd{i} = Div (f{i}, root)",
            f"fe{i} = Erf (fd{i})",
            f"fa{i} = Add (fe{i}, one)",
            f"fm{i} = Mul (f{i}, fa{i})",
            f"fg{i} = Mul (fm{i}, half)",
            *dense(f"fg{i}", f"d{i}", ffn, width),
            f"t{i} = Add (d{i}, a{i})",
            *norm(f"t{i}", f"x{i + 1}"),
        ]
    head = "g (int64[2, 19] index, int64[2, 1, 1, 19] mask)"
    return Model(f"{head} => (float[2, 19, {width}] x{n_layers}) {{ {' '.join(lines)} }}", weights, 17)


def _elementwise(dtype: str, integer: bool) -> Model:
    """Arithmetic, comparison, choice and a cast of one element type, with a broadcast operand."""
    word = {"float32": "float", "float64": "double"}.get(dtype, dtype)
    body = """
        s = Add (x, b) p = Mul (s, x) d = Sub (p, b) m = Max (d, x) n = Min (m, p)
        l = Less (x, b) w = Where (l, n, s) y = Neg (w) z = Abs (d) f = Cast <to = 1> (z)
    """
    if not integer:
        body += (
            "e = Exp (x) t = Tanh (d) u = Div (e, z) v = Sqrt (z) c = Floor (p) k = Add (u, t) q = Add (k, v)"
        )
    outputs = [("y", word), ("f", "float")] + ([] if integer else [("q", word), ("c", word)])
    types = ", ".join(f"{t}[3, 37] {y}" for y, t in outputs)
    return Model(f"g ({word}[3, 37] x, {word}[37] b) => ({types}) {{ {body} }}")


def _product(a: str, b: str, y: str, weights: Mapping[str, Weight]) -> Model:
    right = "" if "w" in weights else f", float[{b}] w"
    return Model(f"g (float[{a}] x{right}) => (float[{y}] y) {{ y = MatMul (x, w) }}", weights)


def _conv(x: str, y: str, w: tuple[int, ...], attributes: str = "", after: str = "Relu") -> Model:
    body = f"c = Conv <{attributes}> (x, w, b) y = {after} (c)"
    text = f"g (float[{x}] x) => (float[{y}] y) {{ {body} }}"
    return Model(text, {"w": w, "b": (w[0],)})


def _recurrent(op: str, gates: int) -> Model:
    """Both directions, sequences of unequal lengths."""
    more = ", linear_before_reset = 1" if op == "GRU" else ""
    body = f'y, h = {op} <hidden_size = 21, direction = "bidirectional"{more}> (x, w, r, b, lengths)'
    text = f"g (float[9, 3, 13] x) => (float[9, 2, 3, 21] y, float[2, 3, 21] h) {{ {body} }}"
    weights = {
        "w": (2, gates * 21, 13),
        "r": (2, gates * 21, 21),
        "b": (2, 2 * gates * 21),
        "lengths": np.array([9, 4, 1], np.int32),
    }
    return Model(text, weights)


def _dynamic_int8(dtype: str, columns: int) -> Model:
    """A product as onnxruntime quantizes it dynamically, with bias and ReLU."""
    body = """
        q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z, wz) f = Cast <to = 1> (i)
        m = Mul (s, ws) d = Mul (f, m) a = Add (d, b) y = Relu (a)
    """
    text = f"g (float[2, 13, 39] x) => (float[2, 13, {columns}] y) {{ {body} }}"
    zero = np.array(128 if dtype == "uint8" else 0, dtype)
    scale = np.array(0.01, np.float32)
    return Model(text, {"w": _bytes(dtype, 39, columns), "wz": zero, "ws": scale, "b": (columns,)})


def _integer_product(left: str, right: str, zero: int) -> Model:
    """Constant weights, whose differences from their zero point may need more than a byte."""
    text = f"g ({left}[2, 13, 68] x) => (int32[2, 13, 37] y) {{ y = MatMulInteger (x, w, xz, wz) }}"
    weights = {"w": _bytes(right, 68, 37), "xz": np.array(7, left), "wz": np.array(zero, right)}
    return Model(text, weights)


MODELS: dict[str, Model] = {
    "bert": bert(),
    "product": _product("7, 45", "45, 53", "7, 53", {}),
    "product_constant": _product("61, 45", "", "61, 53", {"w": (45, 53)}),
    "product_row": _product("1, 100", "", "1, 70", {"w": (100, 70)}),
    "product_batched": _product("2, 1, 19, 33", "3, 33, 17", "2, 3, 19, 17", {}),
    "gemm": Model(
        """g (float[33, 9] x) => (float[9, 21] y)
        { c = Gemm <alpha = 0.5, beta = 2.0, transA = 1, transB = 1> (x, w, b) y = Tanh (c) }""",
        {"w": (21, 33), "b": (21,)},
    ),
    "product_double": Model("g (double[5, 9] x, double[9, 7] w) => (double[5, 7] y) { y = MatMul (x, w) }"),
    "attention_fused": Model(
        """g (float[2, 3, 21, 12] q, float[2, 3, 12, 29] k, float[2, 3, 29, 12] v) => (float[2, 3, 21, 12] y)
        { s = MatMul (q, k) t = Mul (s, c) m = Add (t, hidden) p = Softmax (m) y = MatMul (p, v) }""",
        {
            "c": np.array(12**-0.5, np.float32),
            "hidden": np.triu(np.full((21, 29), -np.inf, np.float32), 9),
        },
    ),
    "attention_causal": Model(
        """g (float[2, 3, 21, 12] q, float[2, 3, 29, 12] k, float[2, 3, 29, 12] v)
        => (float[2, 3, 21, 12] y) { y = Attention <is_causal = 1> (q, k, v) }""",
        opset=23,
    ),
    "attention_mask": Model(
        """g (float[2, 4, 5, 16] q, float[2, 2, 50, 16] k, float[2, 2, 50, 16] v, bool[5, 50] mask)
        => (float[2, 4, 5, 16] y) { y = Attention (q, k, v, mask) }""",
        opset=23,
    ),
    "rotary": Model(
        """g (float[2, 3, 11, 20] x, float[1, 1, 11, 16] c, float[1, 1, 11, 16] s)
        => (float[2, 3, 11, 20] y) {
        r, rest = Split <axis = 3> (x, parts) a, b = Split <axis = 3, num_outputs = 2> (r)
        n = Neg (b) turned = Concat <axis = -1> (n, a) u = Mul (r, c) v = Mul (turned, s) w = Add (u, v)
        y = Concat <axis = -1> (w, rest) }""",
        {"parts": np.array([16, 4])},
    ),
    "conv": _conv("1, 5, 17, 13", "1, 7, 17, 13", (7, 5, 3, 3), "pads = [1, 1, 1, 1]"),
    "conv_winograd": _conv("1, 32, 21, 18", "1, 48, 21, 18", (48, 32, 3, 3), "pads = [1, 1, 1, 1]"),
    "conv_depthwise": _conv(
        "2, 19, 14, 15", "2, 19, 14, 15", (19, 1, 3, 3), "group = 19, pads = [1, 1, 1, 1]"
    ),
    "conv_grouped": _conv("1, 12, 9, 11", "1, 20, 9, 11", (20, 3, 3, 3), "group = 4, pads = [1, 1, 1, 1]"),
    "conv_strided": _conv(
        "2, 3, 30, 31", "2, 21, 14, 15", (21, 3, 5, 3), "strides = [2, 2], pads = [1, 0, 1, 0]", "Sigmoid"
    ),
    "conv_1d": _conv("2, 9, 31", "2, 17, 27", (17, 9, 3), "dilations = [2]", "Tanh"),
    "conv_transposed": Model(
        """g (float[1, 6, 7, 8] x) => (float[1, 5, 15, 17] y)
        { y = ConvTranspose <strides = [2, 2]> (x, w, b) }""",
        {"w": (6, 5, 3, 3), "b": (5,)},
    ),
    "conv_normalized": Model(
        """g (float[1, 3, 20, 20] x) => (float[1, 18] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w, b) n = BatchNormalization (c, g1, b1, m1, v1) r = Relu (n)
        p = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r) d = Conv (p, w2, b1) s = Add (d, p)
        a = GlobalAveragePool (s) y = Flatten (a) }""",
        {
            **{"w": (18, 3, 3, 3), "b": (18,), "g1": (18,), "b1": (18,), "m1": (18,)},
            **{"v1": np.linspace(0.5, 2, 18, dtype=np.float32), "w2": (18, 18, 1, 1)},
        },
    ),
    "pools": Model(
        """g (float[2, 5, 17, 19] x) => (float[2, 5, 8, 9] a, float[2, 5, 9, 10] b, float[2, 5, 15, 17] c) {
        a = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (x)
        b = AveragePool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]> (x)
        c = LpPool <kernel_shape = [3, 3], p = 2> (x) }""",
        opset=18,
    ),
    "lstm": _recurrent("LSTM", 4),
    "gru": _recurrent("GRU", 3),
    "rnn": _recurrent("RNN", 1),
    "reductions": Model(
        """g (float[3, 5, 7, 33] x)
        => (float[3, 7] a, float[5, 33] b, float[3, 5, 7] c, float[1, 1, 1, 1] d, int64[3, 5, 7] e) {
        a = ReduceSum <keepdims = 0> (x, i) b = ReduceMax <keepdims = 0> (x, j)
        c = ReduceMean <keepdims = 0> (x, l) d = ReduceL2 (x) e = ArgMax <axis = -1, keepdims = 0> (x) }""",
        {"i": np.array([1, 3]), "j": np.array([0, 2]), "l": np.array([-1])},
    ),
    "norms": Model(
        """g (float[4, 6, 45] x)
        => (float[4, 6, 45] a, float[4, 6, 45] b, float[4, 6, 45] c, float[4, 6, 45] d) {
        a = LayerNormalization (x, s, t) b = RMSNormalization (x, s) c = Softmax <axis = 1> (x)
        d = LogSoftmax <axis = -1> (x) }""",
        {"s": (45,), "t": (45,)},
        23,
    ),
    "group_norm": Model(
        """g (float[2, 6, 5, 9] x) => (float[2, 6, 5, 9] y, float[2, 6, 5, 9] z)
        { y = GroupNormalization <num_groups = 3> (x, s, t) z = InstanceNormalization (x, s, t) }""",
        {"s": (6,), "t": (6,)},
    ),
    "indexing": Model(
        """g (float[5, 7, 11] x, int64[3, 4] index, float[3, 4, 7, 11] u, int64[5, 7, 3] index2)
        => (float[5, 3, 4, 11] a, float[5, 7, 3] b, float[5, 7, 11] c, float[4, 5] d, int64[4, 5] e) {
        a = Gather <axis = 1> (x, index) b = GatherElements <axis = 2> (x, index2)
        c = ScatterElements <axis = 2, reduction = "add"> (x, index2, b)
        f = Slice (x, zero, one, axis) g = ReduceMax <keepdims = 0> (f, axis) h = Slice (g, zero, four, zero)
        d, i = TopK (h, k) e = Cast <to = 7> (i) }""",
        {
            **{"zero": np.array([0]), "one": np.array([1]), "four": np.array([4])},
            **{"axis": np.array([2]), "k": np.array([5])},
        },
    ),
    "moves": Model(
        """g (float[3, 5, 7] x) => (float[7, 3, 5] a, float[5, 9, 12] b, float[2, 3, 7] c, float[3, 10, 7] d,
        float[6, 5, 14] e, float[3, 2, 7] f1, float[3, 3, 7] f2) {
        a = Transpose <perm = [2, 0, 1]> (x) b = Pad <mode = "reflect"> (x, p)
        s = Slice (x, lo, hi, axes, by) c = Transpose <perm = [1, 0, 2]> (s) d = Concat <axis = 1> (x, x)
        e = Tile (x, r) f1, f2 = Split <axis = 1> (x, parts) }""",
        {
            **{"p": np.array([1, 2, 2, 1, 2, 3]), "lo": np.array([4, 0]), "hi": np.array([0, 3])},
            **{"axes": np.array([1, 0]), "by": np.array([-2, 1]), "r": np.array([2, 1, 2])},
            **{"parts": np.array([2, 3])},
        },
    ),
    "resize": Model(
        """g (float[1, 3, 9, 10] x) => (float[1, 3, 18, 20] a, float[1, 3, 13, 7] b, float[1, 3, 14, 15] c) {
        a = Resize <mode = "nearest"> (x, , s) b = Resize <mode = "linear"> (x, , , n)
        c = Resize <mode = "cubic"> (x, , , m) }""",
        {
            "s": np.array([1, 1, 2, 2], np.float32),
            **{"n": np.array([1, 3, 13, 7]), "m": np.array([1, 3, 14, 15])},
        },
    ),
    "activations": Model(
        """g (float[3, 37] x)
        => (float[3, 37] a, float[3, 37] b, float[3, 37] c, float[3, 37] d, float[3, 37] e) {
        a = Gelu (x) s = Softplus (x) b = Mish (s) t = Sin (x) u = Cos (t) v = Atan (u) c = Pow (v, p)
        g = Sigmoid (x) d = HardSwish (g) l = Abs (x) e = Log (l) }""",
        {"p": np.array(1.7, np.float32)},
    ),
    **{f"elementwise_{x}": _elementwise(x, False) for x in ("float64", "float16", "bfloat16")},
    **{f"elementwise_{x}": _elementwise(x, True) for x in ("int8", "int32", "int64")},
    "sums": Model(
        """g (float[4, 50] x, int64[4, 9] i) => (float[4, 50] a, int64[4, 9] b)
        { a = CumSum (x, n) b = CumSum (i, n) }""",
        {"n": np.array(1)},
    ),
    "einsum": Model(
        """g (float[3, 5, 7] x, float[3, 7, 6] z) => (float[3, 6] y)
        { y = Einsum <equation = "bij,bjk->bk"> (x, z) }"""
    ),
    "int8_dynamic": _dynamic_int8("int8", 37),
    "uint8_dynamic": _dynamic_int8("uint8", 16),
    "int8_product": _integer_product("uint8", "int8", 0),
    "int8_product_signed": _integer_product("int8", "int8", 0),
    "int8_product_wide": _integer_product("uint8", "uint8", 90),
    "int8_chain": Model(
        """g (float[5, 36] x) => (float[5, 20] y) {
        q = QuantizeLinear (x, s, z) p = QLinearMatMul (q, s, z, w, ws, wz, s, z)
        d = DequantizeLinear (p, s, z) y = Relu (d) }""",
        {
            **{"s": np.array(0.02, np.float32), "z": np.array(120, np.uint8), "w": _bytes("int8", 36, 20)},
            **{"ws": np.full(20, 0.002, np.float32), "wz": np.zeros(20, np.int8)},
        },
    ),
    "int8_conv": Model(
        """g (uint8[2, 5, 9, 10] x) => (uint8[2, 7, 9, 10] y, int32[2, 7, 4, 5] i) {
        y = QLinearConv <pads = [1, 1, 1, 1]> (x, s, z, w, ws, wz, t, z, b)
        i = ConvInteger <strides = [2, 2]> (x, w, z, wz) }""",
        {
            **{
                "s": np.array(0.02, np.float32),
                "z": np.array(120, np.uint8),
                "w": _bytes("int8", 7, 5, 3, 3),
            },
            **{"ws": np.array(0.002, np.float32), "wz": np.array(0, np.int8), "t": np.array(0.1, np.float32)},
            "b": np.arange(7, dtype=np.int32) * 100,
        },
    ),
}
