"""`pliant.open`: open a session for any source."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache as remembered
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never, get_args
from warnings import warn

from pliant.api.load_compiled import open_compiled, shared_pool
from pliant.api.model import (
    CheckpointModel,
    CompiledProgram,
    EncoderModel,
    Model,
    OnnxGraph,
    RecurrentNetwork,
    StoreModel,
    unsupported_error,
)
from pliant.api.open_elastic import BaselineName, OnProgress, PrecisionOptions, open_elastic
from pliant.api.resolve import Source, resolve
from pliant.errors import InputError, NodeError
from pliant.ir.device import DeviceProfile
from pliant.ir.dilation import Dilation, require_compute_only
from pliant.models.hf.config import ignored_head
from pliant.plan.plan import NO_TARGET_S
from pliant.plan.precision import TOLERANCE, ComputePrecision, check_compute
from pliant.plan.submodel.plan_options import OURS, Depths, PlanOptions
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.process_memory import Memory, MemoryBudget, memory_limit_of, preload_of
from pliant.run.session.session import Session
from pliant.run.submodel.plans.submodel_planner import MARGIN, SessionOptions
from pliant.settings import thread_count
from pliant.store.coding.quantize import Quantizer

if TYPE_CHECKING:
    from pliant.api.open_cluster import Cluster
    from pliant.ir.bitwidths import WeightFormat
    from pliant.serve.node.routing import Routing


_CHOICES = {"depths": Depths, "baseline": BaselineName, "quantizer": Quantizer}
_TYPES = {"profile": DeviceProfile, "dilation": Dilation, "plan": PlanOptions}
"""Options of text encoders: their choices, and their types."""


def open(
    source: Source,
    *,
    latency: str | float | None = None,
    preload: str | int | None = None,
    working: str | int | None = None,
    length: int = 64,
    threads: int | None = None,
    anytime: bool = True,
    best_effort: bool = False,
    compute: ComputePrecision = "fp32",
    examples: Sequence[Any] = (),
    tolerance: float = TOLERANCE,
    profile: DeviceProfile | None = None,
    memory: Memory | None = None,
    weights: "WeightFormat" = "fp32",
    dilation: Dilation = Dilation(),  # noqa: B008 - frozen
    plan: PlanOptions = OURS,
    depths: Depths | None = None,
    margin: float = MARGIN,
    io_reserve: float | None = None,
    adapt: bool = True,
    baseline: BaselineName | None = None,
    quantizer: Quantizer | None = None,
    cache: Path | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
    cluster: "str | Cluster | None" = None,
    upstreams: Collection[str] = (),
    routing: "Routing | None" = None,
) -> Session[Any]:
    """Open a session that answers text, or arrays, with the model that `source` names.

    `source` is the name of a model that ships with pliant ("sst2", "imdb-lstm"), a Hugging Face model
    directory, a hub id, a store, a recurrent model's directory or "random:CONFIG[:SEED]", a directory written
    by `pliant compile`, or an ONNX model: its path, its bytes or a ModelProto. Text encoders give an
    `ElasticSession`, recurrent models a `RecurrentSession`; both answer text. ONNX models and compiled ones
    answer arrays, as the sessions of `pliant.compile` and `pliant.load` do; `compile` has more options.

    Options of several kinds of models; for other kinds an option raises InputError:
    - `threads` and `cache` default to the values of settings.py. `dilation` emulates a slower device.
    - `memory` ("8MB", or bytes) limits what the session adds to the process: weights, buffers, activations
      (docs/memory.md).
    - `compute` is the arithmetic of matrix products: "fp32", "bf16" (CPUs with AVX512-BF16), "int8", or
      "auto": the fastest within `tolerance`, measured on `examples` (texts and pairs, or feeds of an ONNX
      model), or for a text encoder without examples by the store's measured accuracy. The plan gives the
      reasons (docs/precision.md).
    - `weights` of an ONNX model are "fp32", bytes (8), coded in 1 to 6 bits, for `examples` if these are
      given and `compute` is not "auto", or "auto": the most bits that fit `memory`, as in `pliant.compile`.

    All other options are for text encoders. A text encoder answers within `latency` and keeps `preload` bytes
    of weights; without `latency` it gives the most accurate answer:
    - `length` is the number of tokens to plan for; inputs of any length are answered.
    - The planner divides `memory` into `preload` and `working`, if these are not given. Several sessions may
      share a `MemoryBudget` instead: sessions without a `preload` hold the weights that it has room for, by
      how often they are called, and answer in turns; a cluster at an address reserves its weights on this
      device in it (docs/memory.md).
    - `profile` replaces the cached or measured device profile.
    - `plan`: if the store has measured accuracy, the submodel of the highest expected accuracy runs;
      `plan=PlanOptions(choose="size")` selects the largest instead, as the paper does.
    - `depths`: layers are left out only of a model that was trained for it (`pliant stretch`) or whose
      accuracy without them was measured; "any" allows it for any model, and replies then have `cut`
      "untrained".
    - `margin` is the fraction of the target that is reserved for unplanned delays.
    - `working` limits the memory for layers that are being read: bits are reduced until they fit.
    - `io_reserve`: the planes that a layer cannot run without are read in time even if reads take this many
      times their 95th percentile (at least 1; None derives it from the spread of reads).
    - `adapt`: plans follow the times of the latest answers, unless it is False.
    - `baseline` runs as one of the systems that STI is compared with.
    - `quantizer` is how weights were converted to codes (None: "lloyd", or that of the store). The paper's
      system is `plan=PAPER, anytime=False, margin=0.0, adapt=False, quantizer="equal-population"`.

    With `cluster` (the address at which `pliant worker --join` reaches this process, or a `Cluster`) or
    `upstreams` (URLs of nodes), each input is answered by this device, by the cluster or by an upstream node,
    whichever serves it best within `latency`. The returned `RoutedSession` reports which and why
    (docs/nodes.md). `routing` has the upstreams' token and the objective. Raises PliantError; errors.py lists
    its kinds.
    """
    given = locals()
    if cluster is not None or upstreams or (routing is not None and routing.discover):
        return _open_routed(given)
    if routing is not None:
        raise InputError("routing needs cluster= or upstreams=: give one of them, or leave routing out.")
    model = resolve(source)
    match model:
        case StoreModel() | CheckpointModel():
            if weights != "fp32":
                raise InputError(
                    f"{model.name} is {model.kind}, which has no option weights: the plan chooses the "
                    "bits; limit them with memory or preload."
                )
            _check_values(given)
            precision_options = _precision_options(compute, examples, tolerance)
            _warn_of_head(model)
            options = SessionOptions(
                target_s=NO_TARGET_S if latency is None else parse_seconds(latency),
                preload_bytes=preload_of(preload, memory),
                memory_bytes=memory_limit_of(memory),
                working_bytes=None if working is None else parse_bytes(working),
                length=length,
                n_threads=thread_count(threads),
                is_anytime=anytime,
                best_effort=best_effort,
                compute="fp32" if compute == "auto" else compute,
                plan=replace(
                    plan,
                    depths=depths or plan.depths,
                    io_reserve=plan.io_reserve if io_reserve is None else io_reserve,
                ),
                margin=margin,
                adapts=adapt,
            )
            return open_elastic(
                model,
                options,
                profile=profile,
                memory=memory if isinstance(memory, MemoryBudget) else None,
                dilation=dilation,
                baseline=baseline,
                quantizer=quantizer,
                cache=cache,
                on_progress=on_progress,
                precision_options=precision_options,
            )
        case RecurrentNetwork():
            _check_options(model, given, ("threads", "cache", "dilation", "memory"))
            slower, made = _compute_alone(model, dilation), shared_pool(threads, cache)
            bound = memory if isinstance(memory, MemoryBudget) else memory_limit_of(memory)
            return RecurrentSession(model.source, *made, name=model.name, dilation=slower, memory=bound)
        case OnnxGraph():
            own = ("threads", "cache", "dilation", "memory", "weights", "compute", "examples", "tolerance")
            _check_options(model, given, own)
            check_compute(compute, examples, weights)
            from pliant.api.compile_onnx import open_fastest, open_graph  # onnx takes a while to import
            from pliant.run.graph.model_options import ModelOptions

            slower = _compute_alone(model, dilation)
            exact = "fp32" if compute == "auto" else compute
            graph = ModelOptions(
                {},
                weights=weights,
                compute=exact,
                memory_bytes=_own_bound(model, memory),
                examples=() if compute == "auto" else examples,
            )
            if compute == "auto":
                return open_fastest(
                    model, graph, examples, tolerance, threads=threads, cache=cache, dilation=slower
                )
            return open_graph(model, graph, threads=threads, cache=cache, dilation=slower)
        case CompiledProgram():
            _check_options(model, given, ("threads", "dilation", "memory"))
            slower, most = _compute_alone(model, dilation), _own_bound(model, memory)
            return open_compiled(model.name, model.path, threads, slower, memory=most)
        case EncoderModel():
            raise unsupported_error(model, "pliant.open")
        case _:
            assert_never(model)


def _precision_options(
    compute: ComputePrecision, examples: Sequence[Any], tolerance: float
) -> PrecisionOptions | None:
    """Return how to choose a text encoder's arithmetic; None if it is given."""
    is_list = isinstance(examples, Sequence) and not isinstance(examples, str)
    if not is_list or not all(map(_is_text, examples)):
        raise InputError("examples of a text encoder must be a list of texts, or of pairs as (text, pair).")
    check_compute(compute, examples)
    return PrecisionOptions(tuple(examples), tolerance) if compute == "auto" else None


def _is_text(example: object) -> bool:
    """Return whether it is a text or a pair of texts."""
    texts = example if isinstance(example, tuple) and len(example) == 2 else (example,)
    return all(isinstance(text, str) for text in texts)


def _open_routed(given: dict[str, Any]) -> Session[Any]:
    """Open by the arguments of `open`; those that differ from their defaults go to the local session."""
    try:
        from pliant.api.open_routed import open_routed
    except ImportError as error:
        raise NodeError(f"cluster= and upstreams= need {error.name}: pip install 'pliant[node]'.") from error

    routed = ("latency", "best_effort", "cluster", "upstreams", "routing")
    mine = {name: given[name] for name in routed}
    others = {name: given[name] for name in _defaults() if name not in routed and _is_given(name, given)}
    return open_routed(given["source"], **mine, options=others)


def _own_bound(model: Model, memory: Memory | None) -> int | None:
    """Return the memory limit of a session. Raises InputError for a budget that sessions share."""
    if isinstance(memory, MemoryBudget):
        raise InputError(
            f"{model.name} is {model.kind}, which cannot share a MemoryBudget: text encoders and recurrent "
            'models can; give it its own limit, such as memory="8MB".'
        )
    return memory_limit_of(memory)


def _warn_of_head(model: StoreModel | CheckpointModel) -> None:
    """Warn that a language model is run as an encoder."""
    name = ignored_head(model.path) if isinstance(model, CheckpointModel) else None
    if name is not None:
        warn(
            f"{model.name} is a {name}, whose head pliant does not run: replies contain the mean of its last "
            "states as `vector`. To predict words, open an ONNX export of the whole model.",
            stacklevel=3,
        )


def _check_values(given: Mapping[str, Any]) -> None:
    """Raise InputError naming a text encoder's option with an invalid value or type."""
    for name, choices in _CHOICES.items():
        if given[name] not in (*get_args(choices), _defaults()[name]):
            raise InputError(f"{name} is {given[name]!r}; give one of {', '.join(get_args(choices))}.")
    for name, kind in _TYPES.items():
        if not isinstance(given[name], kind) and given[name] is not _defaults()[name]:
            raise InputError(f"{name} is of type {type(given[name]).__name__}; give a {kind.__name__}.")


def _check_options(model: Model, given: Mapping[str, Any], takes: Collection[str]) -> None:
    """Raise InputError naming options, among the arguments `given` to `open`, that the model lacks."""
    others = set(_defaults()) - {*takes, "on_progress"}
    wrong = [name for name in _defaults() if name in others and _is_given(name, given)]
    if wrong:
        more = " pliant.compile has further options for it." if isinstance(model, OnnxGraph) else ""
        if isinstance(model, RecurrentNetwork) and "latency" in wrong:
            more = " Give a target with a call: session(text, latency=...)."
        raise InputError(
            f"{model.name} is {model.kind}, which has no option {', '.join(wrong)}: its options are "
            f"{', '.join(takes)}.{more}"
        )


def _is_given(name: str, given: Mapping[str, Any]) -> bool:
    """Return whether an option has another value than its default; an empty list is an empty tuple."""
    value, default = given[name], _defaults()[name]
    if default == ():
        return not isinstance(value, Collection) or len(value) > 0
    return bool(value != default)


@remembered
def _defaults() -> Mapping[str, Any]:
    """Return the options of `open` with their defaults."""
    parameters = signature(open).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def _compute_alone(model: Model, dilation: Dilation) -> Dilation:
    return require_compute_only(dilation, f"{model.name} is {model.kind}, which")
