"""`pliant.compile`: compile an ONNX model into a session."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from pliant.api.choose_precision import choose_precision
from pliant.api.load_compiled import load, shared_pool
from pliant.api.model import OnnxGraph, unsupported_error
from pliant.api.resolve import Source, resolve
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.errors import InputError, ModelError
from pliant.ir.bitwidths import WeightFormat
from pliant.ir.dilation import Dilation
from pliant.ir.graph import Graph, TensorType
from pliant.ir.port import Port, require_tensors
from pliant.kernels.product.bf16_pairs import require_bf16
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.models.onnx.onnx_file import open_onnx
from pliant.plan.precision import TOLERANCE, ComputePrecision, check_compute
from pliant.quantities import parse_bytes
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.batches.buckets import Buckets
from pliant.run.graph.model_options import ModelOptions
from pliant.run.graph.schedule_graph import ScheduleKind, ScheduleReport
from pliant.run.session.feeds import FeedsLike

__all__ = ["compile", "compile_image", "load", "sample_feeds", "shared_pool"]


def compile(
    source: Source,
    *,
    dims: Mapping[str, int] | None = None,
    threads: int | None = None,
    without: Collection[str] = (),
    images: int = 8,
    schedule: ScheduleKind = "static",
    weights: WeightFormat = "fp32",
    compute: ComputePrecision = "fp32",
    examples: Sequence[FeedsLike] = (),
    tolerance: float = TOLERANCE,
    buckets: Mapping[str, Sequence[int]] | None = None,
    pads: Mapping[str, float] | None = None,
    memory: str | int | None = None,
    cache: Path | None = None,
) -> OnnxSession:
    """Open a session that runs an ONNX model, given by its path, its bytes or as a ModelProto.

    `dims` fixes symbolic dimensions ({"batch": 1}); a dimension without a name is called "input.axis". Other
    dimensions follow the feeds: the model is compiled for each new shape, and the last `images` of these are
    kept. A UserWarning reports that a dropped shape is compiled again. `threads` defaults to
    settings.thread_count; sessions of equal `threads` share a pool. `without` names passes to leave out.
    Compiled kernels are kept in `cache`, by default settings.cache_folder.

    `buckets` lists sizes of symbolic dimensions ({"sequence": (32, 64, 128)}): feeds are padded to the next
    size, with zeros or the input's number in `pads`, and outputs are cut back, so that few images are
    compiled. This is correct only for models whose outputs do not depend on padding, such as those with a
    mask. The first outputs of each bucket are compared with those of the exact shape; a difference raises
    InputError. `session.run_many` answers several feeds of one bucket in one run, and several runs at a time.

    `schedule` chooses layouts and loops: "static" by rule, "paper" by votes and "exact" by an integer
    program over measured times (kept in `cache`; the first model takes seconds), "none" leaves default
    layouts and plain loops for comparison.

    `weights` of 1 to 6 bits keep the weights of matrix products in the store's codes, with exact outliers,
    and decode them during the product; 8 keeps them in bytes, with one scale a column. `compute="int8"`
    multiplies bytes: codes are rounded when they are decoded, and activations are rounded by row.
    `compute="bf16"` rounds both to bfloat16, coded or not, and needs a CPU with AVX512-BF16.

    With `examples` (feeds) codes are chosen for the least error of products with the inputs that these give.
    The model answers them in float32 once; they should resemble the inputs to come. `memory` does not limit
    this measurement (docs/precision.md).

    `compute="auto"` answers `examples` in each form that this CPU has, with codes that do not depend on them,
    and selects the fastest whose error, the rms of the difference from fp32 over that of the answer, is at
    most `tolerance`; with `weights="auto"` it chooses the bits as well. The session's `precision` and its
    plan give the reasons.

    `memory` ("8MB", or bytes) limits what the session adds to the process: weights and activations, but not
    pages of mapped files (docs/memory.md). With `weights="auto"` they are fp32 if that fits, else the most
    bits that fit; the first shapes decide. Images for other shapes are dropped to keep the limit. The
    session's `memory` has predicted and measured bytes.

    Raises BudgetError, before anything is allocated, naming the least memory for the current shapes,
    ModelError for a file that cannot be read or is damaged, GraphError for a model that cannot be compiled,
    InputError for invalid options.
    """
    model = _onnx_graph(source, "pliant.compile")
    padding = Buckets(buckets or {}, pads or {})
    memory_bytes = None if memory is None else parse_bytes(memory)
    asked = partial(ModelOptions, dims or {}, without, images, schedule, weights)
    check_compute(compute, examples, weights)
    if compute != "auto":
        options = asked(compute, padding, memory_bytes, examples=examples)
        return open_graph(model, options, threads=threads, cache=cache)
    return open_fastest(
        model, asked("fp32", padding, memory_bytes), examples, tolerance, threads=threads, cache=cache
    )


def open_fastest(
    model: OnnxGraph,
    options: ModelOptions,
    examples: Sequence[FeedsLike],
    tolerance: float,
    *,
    threads: int | None = None,
    cache: Path | None = None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
) -> OnnxSession:
    """Open as `open_graph`, in the fastest arithmetic within `tolerance`; see `choose_precision`."""
    here = partial(open_graph, model, threads=threads, cache=cache)
    return here(choose_precision(options, here, examples, tolerance), dilation=dilation)


def open_graph(
    model: OnnxGraph,
    options: ModelOptions = ModelOptions({}),  # noqa: B008 - frozen
    *,
    threads: int | None = None,
    cache: Path | None = None,
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
) -> OnnxSession:
    """Open an ONNX model; it runs `dilation` times slower. Raises as `compile` does."""
    library, pool = shared_pool(threads, cache)
    if options.compute == "bf16":
        require_bf16(library.isa)
    return OnnxSession(open_onnx(model.content), pool, library, options, name=model.name, dilation=dilation)


def compile_image(
    source: Source,
    target: Target,
    *,
    dims: Mapping[str, int] | None = None,
    without: Collection[str] = (),
    schedule: ScheduleKind = "static",
    weights: WeightFormat = "fp32",
    compute: ComputeDtype = "fp32",
    examples: Sequence[FeedsLike] = (),
) -> tuple[Graph, Image, ScheduleReport | None]:
    """Return the graph after all passes, its image for `target` (any CPU), and its schedule.

    Nothing is run, except the measurements of a schedule and the examples for weights in codes, on this CPU.

    Raises InputError naming the dimensions that are still open, and as `compile` does.
    """
    check_compute(compute, examples, weights)
    if compute == "bf16":
        require_bf16(target.isa)
    library, pool = shared_pool(target.n_threads if schedule in ("paper", "exact") else 1)
    options = ModelOptions(
        dims or {}, without, schedule=schedule, weights=weights, compute=compute, examples=examples
    )
    onnx = open_onnx(_onnx_graph(source, "pliant compile").content)
    session = OnnxSession(onnx, pool, library, options, ahead=False, target=target)
    graph = session.graph(sample_feeds(session.inputs))
    return graph, make_image(graph, target), session.schedule


def sample_feeds(inputs: Sequence[Port]) -> dict[str, np.ndarray]:
    """Return sample feeds: ones for integers (valid as token ids and masks), noise for other types.

    Raises InputError naming the dimensions that are not fixed.
    """
    require_tensors(inputs, "a compiled graph")
    open_dims = sorted({f"{p.name}: {p}" for p in inputs if not p.is_static})
    if open_dims:
        names = sorted({d for p in inputs for d in p.dims or () if isinstance(d, str)})
        example = ", such as " + " ".join(f"--dim {name}=1" for name in names) if names else ""
        raise InputError(f"fix every dimension with dims or --dim{example}: {'; '.join(open_dims)}.")
    rng = np.random.default_rng(0)
    feeds = {}
    for port in inputs:
        shape = tuple(d for d in port.dims or () if isinstance(d, int))
        kind = TensorType(port.dtype, shape).numpy
        is_float = port.dtype in ("float16", "bfloat16", "float32", "float64")
        feeds[port.name] = (rng.standard_normal(shape) if is_float else np.ones(shape)).astype(kind)
    return feeds


def _onnx_graph(source: Source, asked: str) -> OnnxGraph:
    """Return the ONNX model that `source` names on this machine. Raises ModelError for other models."""
    model = resolve(source, _no_download)
    if isinstance(model, OnnxGraph):
        return model
    raise unsupported_error(model, asked)


def _no_download(source: str) -> Path:
    raise ModelError(f"there is no file {source!r}.")
