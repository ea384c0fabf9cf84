"""pliant.compile beside onnxruntime and OpenVINO: image models, layers, operators, and recurrent layers.

Batch 1, fp32, weights random. Wall time with two threads, each runtime in its own process, interleaved. On a
busy machine the CPU time of one thread is more reliable, so it is also shown.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from paired import Ratio, paired
from report import Report, interleaved, options
from runtimes import THREADS
from serving import PAUSE_S, Server, write_feeds

COMPARED = tuple(x for x in ("pliant", "onnxruntime", "openvino") if find_spec(x))
LAYER_PAUSE_S = 0.05
"""Pause before a layer's run, shorter than before a model's, since threads spin for less time after a short
run.
"""

# Input channels, output channels, height and width of the input, kernel, stride.
LAYERS: dict[str, tuple[tuple[int, int, int, int, int], ...]] = {
    "ResNet-50": (
        (3, 64, 224, 7, 2),
        (64, 64, 56, 3, 1),
        (64, 256, 56, 1, 1),
        (256, 64, 56, 1, 1),
        (128, 128, 56, 3, 2),
        (128, 128, 28, 3, 1),
        (128, 512, 28, 1, 1),
        (512, 128, 28, 1, 1),
        (256, 256, 14, 3, 1),
        (256, 1024, 14, 1, 1),
        (1024, 256, 14, 1, 1),
        (512, 512, 7, 3, 1),
        (512, 2048, 7, 1, 1),
        (2048, 512, 7, 1, 1),
    ),
    "VGG-16": (
        (3, 64, 224, 3, 1),
        (64, 64, 224, 3, 1),
        (64, 128, 112, 3, 1),
        (128, 128, 112, 3, 1),
        (256, 256, 56, 3, 1),
        (512, 512, 28, 3, 1),
        (512, 512, 14, 3, 1),
    ),
}
RECURRENT = (
    ("LSTM", 60, 1),
    ("LSTM", 60, 2),
    ("GRU", 60, 1),
    ("GRU", 60, 2),
    ("LSTM", 10, 1),
    ("LSTM", 1, 1),
)
UNITS = 300
_IMAGE = (1, 64, 56, 56)
GROUPED = (
    (256, 28, 8, 1),
    (512, 14, 16, 1),
    (1024, 7, 32, 1),
    (256, 56, 8, 2),
    (512, 28, 16, 2),
    (104, 28, 8, 1),
    (440, 7, 8, 1),
    (64, 28, 2, 1),
)
"""Channels, size, channels per group, stride: of ResNeXt-50 32x4d, RegNetY-400MF, and two channels per
group.
"""
POINTS = ((12, 48, 28), (48, 12, 28), (24, 96, 14), (96, 24, 14), (48, 192, 7), (192, 48, 7))
"""Channels of x and of y in each of 8 groups, and the size: the 1 x 1 convolutions of ShuffleNet."""
# Operator, input, attributes, and the scales or the weights that it also reads.
OPERATORS: tuple[tuple[str, tuple[int, ...], Mapping[str, object], tuple[int, ...] | float], ...] = (
    *(("Resize", _IMAGE, {"mode": mode}, 2.0) for mode in ("nearest", "linear", "cubic")),
    *(("Resize", (1, 64, 112, 112), {"mode": mode}, 0.5) for mode in ("nearest", "linear", "cubic")),
    *(
        (op, _IMAGE, {"kernel_shape": [k, k], "strides": [s, s], "pads": [k // 2] * 4}, ())
        for op, k, s in product(("MaxPool", "AveragePool"), (3, 7), (1, 2))
    ),
    *(
        (op, (1, 512, n, n), {"kernel_shape": [k, k], "strides": [s, s], "pads": [k // 3] * 4}, ())
        for op, n, (k, s) in product(("MaxPool", "AveragePool"), (7, 14), ((2, 2), (3, 1)))
    ),
    *(
        (op, (1, 128, 28, 28), {"kernel_shape": [3, 3], "strides": [s, s], "pads": [1] * 4}, ())
        for op, s in product(("MaxPool", "AveragePool"), (1, 2))
    ),
    ("GlobalAveragePool", (1, 512, 7, 7), {}, ()),
    *(("Conv", (1, 128, 56, 56), {"group": 128 // n, "pads": [1] * 4}, (128, n, 3, 3)) for n in (2, 4, 8)),
    *(
        ("Conv", (1, c, n, n), {"group": c // w, "pads": [1] * 4, "strides": [s, s]}, (c, w, 3, 3))
        for c, n, w, s in GROUPED
    ),
    *(("Conv", (1, 8 * c, n, n), {"group": 8}, (8 * k, c, 1, 1)) for c, k, n in POINTS),
)
BARS = {"resnet50": 1.0, "vgg16": 1.0}


def main() -> None:
    opts = options(__doc__ or "")
    workload = "batch 1, fp32; VGG-16 and ResNet-50 at 224 x 224, LSTM and GRU of 300 units"
    report = Report("vision", workload, opts)
    rounds = 3 if opts.quick else 11
    with TemporaryDirectory() as folder:
        _models(report, Path(folder), rounds, ("resnet50",) if opts.quick else tuple(BARS))
        if not opts.quick:
            _layers(report, Path(folder), rounds)
            _operators(report, Path(folder), rounds)
            _recurrent(report, Path(folder), rounds)
    report.finish()


def _models(report: Report, folder: Path, rounds: int, names: tuple[str, ...]) -> None:
    from vision_models import export

    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    rows = []
    for name in names:
        row, ratio = _compared(name, export(name, folder / f"{name}.onnx"), {"x": x}, rounds)
        rows.append(row)
        bar = BARS[name]
        note = f"{name}; 95 % interval {ratio.low:.3f} to {ratio.high:.3f}"
        note += f"; CPU time of one thread {row['CPU / onnxruntime, 1 thread']:.3f}"
        report.claim("compile.time", ratio.value, f"at most {bar} of onnxruntime", ratio.value <= bar, note)
    report.table("Whole models (medians of paired ratios; CPU time: minima)", rows)


def _layers(report: Report, folder: Path, rounds: int) -> None:
    rows = []
    for model, layers in LAYERS.items():
        for layer in layers:
            channels, outs, size, kernel, stride = layer
            title = f"{model}: {channels} -> {outs}, {size} x {size}, {kernel} x {kernel} / {stride}"
            x = np.random.default_rng(1).standard_normal((1, channels, size, size)).astype(np.float32)
            rows.append(_compared(title, _layer(folder / "layer.onnx", *layer), {"x": x}, rounds)[0])
    report.table("Convolution with bias and relu, alone: both reorder its input and output", rows)


def _operators(report: Report, folder: Path, rounds: int) -> None:
    rows = []
    for op, shape, attributes, given in OPERATORS:
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        said = ", ".join(f"{name} {value}" for name, value in attributes.items())
        title = f"{op}, {' x '.join(map(str, shape))}; {said}{f', by {given}' if op == 'Resize' else ''}"
        path = _operator(folder / "operator.onnx", op, shape, attributes, given)
        rows.append(_compared(title, path, {"x": x}, rounds)[0])
    report.table("Operators alone", rows)


def _recurrent(report: Report, folder: Path, rounds: int) -> None:
    rows = []
    for op, steps, depth in RECURRENT:
        x = np.random.default_rng(1).standard_normal((steps, 1, UNITS)).astype(np.float32)
        path = _stack(folder / "stack.onnx", op, steps, depth)
        title = f"{op}, {steps} steps, {depth} layer{'s' if depth > 1 else ''}"
        rows.append(_compared(title, path, {"x": x}, 2 * rounds)[0])
    report.table(f"Recurrent layers of {UNITS} units", rows)


def _compared(
    name: str, path: Path, given: Mapping[str, np.ndarray], rounds: int
) -> tuple[dict[str, object], Ratio]:
    """A row, and the ratio to onnxruntime's wall time."""
    own = write_feeds(given, path.with_suffix(".npz"))
    pause_s = PAUSE_S if path.stem in BARS else LAYER_PAUSE_S
    with ExitStack() as stack:

        def opened(peer: str, threads: int) -> Server:
            return stack.enter_context(Server(peer, path, own, threads, pause_s=pause_s))

        servers = {peer: opened(peer, THREADS) for peer in COMPARED}
        single = {peer: opened(peer, 1) for peer in ("pliant", "onnxruntime")}
        want = servers["onnxruntime"].answer
        error = float(np.abs(servers["pliant"].answer - want).max() / np.abs(want).max())
        seconds, _ = interleaved({peer: server.seconds for peer, server in servers.items()}, rounds)
        cpu, _ = interleaved({peer: server.processor_s for peer, server in single.items()}, rounds)
    row: dict[str, object] = {"what": name}
    row |= {f"{peer} ms": 1e3 * median(taken) for peer, taken in seconds.items()}
    for peer in ("onnxruntime", "openvino"):
        row[f"/ {peer}"] = (
            str(paired(seconds["pliant"], seconds[peer])) if peer in seconds else "not installed"
        )
    row["CPU ms, 1 thread"] = 1e3 * median(cpu["pliant"])
    row["CPU / onnxruntime, 1 thread"] = str(paired(cpu["pliant"], cpu["onnxruntime"]))
    row["largest difference / largest"] = error
    return row, paired(seconds["pliant"], seconds["onnxruntime"])


def _layer(path: Path, channels: int, outs: int, size: int, kernel: int, stride: int) -> Path:
    random = np.random.default_rng(0)
    w = random.standard_normal((outs, channels, kernel, kernel)) / (channels * kernel * kernel) ** 0.5
    conv = helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[kernel // 2] * 4, strides=[stride, stride])
    nodes = [conv, helper.make_node("Relu", ["c"], ["y"])]
    weights = {"w": w, "b": random.standard_normal(outs)}
    return _saved(path, nodes, weights, (1, channels, size, size))


def _operator(
    path: Path,
    op: str,
    shape: tuple[int, ...],
    attributes: Mapping[str, object],
    given: tuple[int, ...] | float,
) -> Path:
    weights, inputs = dict[str, np.ndarray](), ["x"]
    if isinstance(given, float):
        weights["scales"], inputs = np.array([1, 1, given, given], np.float32), ["x", "", "scales"]
    elif given:
        weights["w"], inputs = (
            np.random.default_rng(0).standard_normal(given) / prod(given[1:]) ** 0.5,
            ["x", "w"],
        )
    return _saved(path, [helper.make_node(op, inputs, ["y"], **attributes)], weights, shape)


def _stack(path: Path, op: str, steps: int, depth: int) -> Path:
    """`depth` layers of UNITS units on as many inputs, weights as torch initialises them."""
    random = np.random.default_rng(0)
    gates, bound = {"LSTM": 4, "GRU": 3}[op], UNITS**-0.5
    nodes, weights, x = [], dict[str, np.ndarray](), "x"
    attributes = {"hidden_size": UNITS} | ({"linear_before_reset": 1} if op == "GRU" else {})
    for i in range(depth):
        names = [f"{letter}{i}" for letter in "wrb"]
        for name, shape in zip(names, ((UNITS,), (UNITS,), ()), strict=True):
            rows = gates * UNITS * (1 if shape else 2)
            weights[name] = random.uniform(-bound, bound, (1, rows, *shape))
        y = "y" if i == depth - 1 else f"y{i}"
        nodes.append(helper.make_node(op, [x, *names], [y], **attributes))
        if y != "y":
            x = f"x{i}"
            nodes += [helper.make_node("Squeeze", [y, "axes"], [x])]
    if depth > 1:
        weights["axes"] = np.array([1])
    return _saved(path, nodes, weights, (steps, 1, UNITS))


def _saved(
    path: Path, nodes: list[onnx.NodeProto], weights: Mapping[str, np.ndarray], shape: tuple[int, ...]
) -> Path:
    initial = [
        numpy_helper.from_array(a if a.dtype.kind == "i" else a.astype(np.float32), name)
        for name, a in weights.items()
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)],
        initial,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


if __name__ == "__main__":
    main()
