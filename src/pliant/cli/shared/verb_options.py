"""Options that several commands share, and the session that they open."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from pliant.api import open_elastic as api
from pliant.api.model import (
    VERBS,
    CheckpointModel,
    ElasticModel,
    Model,
    OnnxGraph,
    StoreModel,
    unsupported_error,
)
from pliant.api.open_elastic import BaselineName, OnProgress, PrecisionOptions
from pliant.api.open_session import open as open_session
from pliant.api.resolve import resolve, shipped_models
from pliant.cli.shared.refuse_options import option_text, refuse_options
from pliant.cli.shared.weight_bits import WeightBits, parse_weights
from pliant.errors import InputError
from pliant.ir.device import DeviceProfile, emulate
from pliant.ir.dilation import Dilation
from pliant.models.encoder.encoder_graph import ComputeDtype
from pliant.plan.plan import NO_TARGET_S
from pliant.plan.precision import TOLERANCE, ComputePrecision, PrecisionChoice
from pliant.plan.submodel.plan_options import OURS, PAPER, ChoiceRule, Depths, PlanOptions
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.array_sessions.array_session import ArraySession
from pliant.run.process_memory import memory_limit_of, preload_of
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.plans.submodel_planner import MARGIN, SessionOptions
from pliant.serve.telemetry.log_lines import LogFormat
from pliant.settings import cache_folder, thread_count
from pliant.store.coding.quantize import Quantizer
from pliant.store.read import Store


def shipped(incomplete: str) -> list[str]:
    """Return the shipped models with this prefix, for shell completion; shells complete paths themselves."""
    return [name for name in shipped_models() if name.startswith(incomplete)]


SourceArgument = Annotated[
    str,
    typer.Argument(
        help="A model that ships with pliant (sst2), a model directory, a store, a hub id, an ONNX "
        "file, a directory written by pliant compile, or random:CONFIG[:SEED].",
        autocompletion=shipped,
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Number of compute threads.", show_default="the available cores", min=1)
]
Arithmetic = Annotated[ComputeDtype, typer.Option("--compute", help="Arithmetic of the matrix products.")]
AnyArithmetic = Annotated[
    ComputePrecision,
    typer.Option(
        "--compute", help="Arithmetic of the matrix products; auto selects the fastest within --tolerance."
    ),
]
Tolerance = Annotated[
    float,
    typer.Option(
        help="For --compute auto: loss of expected accuracy to accept, or where none was measured, the "
        "relative error of answers; as a fraction.",
        min=0.0,
    ),
]
System = Annotated[
    BaselineName | None,
    typer.Option(
        help="Plan and run as one of the baselines of the STI paper; each has its own preload buffer."
    ),
]
LayersLeft = Annotated[
    Depths | None,
    typer.Option(
        help="When layers may be left out: `trained`, if the model was trained for it or the accuracy "
        "was measured; `any`, always, with unknown accuracy.",
        show_default=OURS.depths,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
LogLines = Annotated[
    LogFormat,
    typer.Option(
        "--log-format",
        help="Format of the lines on standard error: `text`, or `json` with one object a line.",
    ),
]


_ANY_MODEL = ("threads", "memory", "dilate_compute")
"""Options of sessions of all kinds of models."""
LENGTH = 64
"""Default number of tokens to plan for or to time."""


_PLANNED = "the plan chooses the bits of its weights; bound them with --memory or --preload"


def resolve_for(source: str, verb: str) -> Model:
    """Return the model of `source`. Raises ModelError, naming the right commands, if `verb` rejects it."""
    model = resolve(source)
    if verb not in VERBS[type(model)]:
        raise unsupported_error(model, f"pliant {verb}")
    return model


MemoryBound = Annotated[
    str | None,
    typer.Option(
        help="Limit of the memory that the session adds to the process, such as 8MB: weights, "
        "buffers, activations.",
        show_default="no limit",
    ),
]
Preload = Annotated[
    str | None,
    typer.Option(
        help="Bytes of weights to keep in memory between runs, such as 200KB.",
        show_default="0, or planned from --memory",
    ),
]


@dataclass(frozen=True, slots=True)
class SessionArguments:
    """The options that `run`, `plan` and `eval` share, as given on the command line.

    None means not given, so that `--paper` can set another default. Raises InputError if a given option
    contradicts `--paper`.
    """

    source: SourceArgument
    latency: Annotated[
        str | None,
        typer.Option(
            help="Latency target from text to answer, such as 20ms.",
            show_default="none: the most accurate answer",
        ),
    ] = None
    preload: Preload = None
    working: Annotated[
        str | None,
        typer.Option(
            help="Limit of the memory for layers that are being read, such as 1MB.",
            show_default="no limit",
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(help="Input length to plan for, in tokens.", show_default=str(LENGTH)),
    ] = None
    threads: Threads = None
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="If no plan meets the target, run the smallest submodel.")
    ] = False
    anytime: Annotated[
        bool | None,
        typer.Option(
            help="Run a layer without the bit-planes that arrive late, instead of waiting for them.",
            show_default="anytime",
        ),
    ] = None
    compute: AnyArithmetic = "fp32"
    tolerance: Tolerance = TOLERANCE
    choose: Annotated[
        ChoiceRule | None,
        typer.Option(
            help="Select the submodel with the highest measured accuracy, or the largest one.",
            show_default=OURS.choose,
        ),
    ] = None
    depths: LayersLeft = None
    io_reserve: Annotated[
        float | None,
        typer.Option(
            help="Plan for reads that take this many times their 95th percentile.",
            show_default="from the measured spread of reads",
            min=1.0,
        ),
    ] = None
    adapt: Annotated[
        bool | None,
        typer.Option(help="Correct the plans by the measured times of recent answers.", show_default="adapt"),
    ] = None
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Plan and run as in the STI paper: its planner and quantizer, the largest submodel "
            "of any depth, no slack, no lead, no margin, and waiting for late reads.",
        ),
    ] = False
    dilate_compute: Annotated[
        float, typer.Option(help="Emulate a device that computes this many times slower.")
    ] = 1.0
    dilate_io: Annotated[float, typer.Option(help="Emulate a disk that is this many times slower.")] = 1.0
    memory: MemoryBound = None
    weights: WeightBits = None

    def __post_init__(self) -> None:
        if not self.paper:
            return
        paper = {"choose": PAPER.choose, "depths": PAPER.depths, "io_reserve": PAPER.io_reserve,
                 "anytime": PAPER.is_anytime, "adapt": False}  # fmt: skip
        for name, value in paper.items():
            given = getattr(self, name)
            if given is not None and given != value:
                its_own = "without it" if value is None else f"with {option_text(name, value)}"
                raise InputError(
                    f"{option_text(name, given)} contradicts --paper, which plans {its_own}: leave one out."
                )

    @property
    def dilation(self) -> Dilation:
        return Dilation(self.dilate_compute, self.dilate_io)

    @property
    def planned_length(self) -> int:
        return LENGTH if self.length is None else self.length

    @property
    def target_s(self) -> float | None:
        """The target in seconds; None without a target."""
        return None if self.latency is None else parse_seconds(self.latency)

    @property
    def options(self) -> SessionOptions:
        return SessionOptions(
            target_s=self.target_s or NO_TARGET_S,
            preload_bytes=preload_of(self.preload, self.memory),
            memory_bytes=memory_limit_of(self.memory),
            working_bytes=None if self.working is None else parse_bytes(self.working),
            length=self.planned_length,
            n_threads=thread_count(self.threads),
            is_anytime=self.anytime is not False and not self.paper,
            best_effort=self.best_effort,
            compute="fp32" if self.compute == "auto" else self.compute,
            adapts=self.adapt is not False and not self.paper,
            plan=self.plan,
            margin=self.margin,
        )

    @property
    def margin(self) -> float:
        return PAPER.margin if self.paper else MARGIN

    @property
    def quantizer(self) -> Quantizer | None:
        """The quantizer that the store must have; None for any."""
        return "equal-population" if self.paper else None

    @property
    def plan(self) -> PlanOptions:
        if self.paper:
            return PAPER
        return PlanOptions(
            choose=self.choose or OURS.choose, depths=self.depths or OURS.depths, io_reserve=self.io_reserve
        )

    def open(
        self,
        model: Model,
        on_progress: OnProgress,
        baseline: BaselineName | None = None,
        takes: tuple[str, ...] = (),
        examples: Callable[[], Sequence[Any]] = tuple,
    ) -> Session[Any]:
        """Open the session of any model. Raises InputError naming options that this kind does not have.

        `takes` lists options that the command itself uses for every model. `examples` returns some of the
        command's inputs; it is called if `--compute auto` compares answers to them.
        """
        if isinstance(model, ElasticModel):
            return self.open_elastic(model, on_progress, baseline, examples)
        own = ("weights", "compute", "tolerance") if isinstance(model, OnnxGraph) else ()
        known = (*_ANY_MODEL, *takes, *own)
        others = {f.name for f in fields(self)} - {"source", *known}
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in known)
        refuse_options(model, self, others, f"of a session's options it has {flags}")
        return open_session(
            self.source,
            threads=self.threads,
            dilation=Dilation(self.dilate_compute),
            memory=self.memory,
            weights=parse_weights(self.weights),
            compute=self.compute,
            examples=self._examples(model, examples),
            tolerance=self.tolerance,
        )

    def open_elastic(
        self,
        model: ElasticModel,
        on_progress: OnProgress,
        baseline: BaselineName | None = None,
        examples: Callable[[], Sequence[Any]] = tuple,
    ) -> ElasticSession:
        """Open the session, of pliant's planner or of a baseline. Packs and profiles on first use."""
        refuse_options(model, self, ("weights",), _PLANNED)
        return api.open_elastic(
            model,
            self.options,
            dilation=self.dilation,
            baseline=baseline,
            quantizer=self.quantizer,
            on_progress=on_progress,
            precision_options=self._precision_options(model, examples),
        )

    def _precision_options(
        self, model: ElasticModel, examples: Callable[[], Sequence[Any]] = tuple
    ) -> PrecisionOptions | None:
        """Return how to choose the arithmetic; None if it is given. Raises InputError as `_examples` does."""
        if self.compute != "auto":
            return None
        return PrecisionOptions(tuple(self._examples(model, examples)), self.tolerance)

    def _examples(self, model: Model, examples: Callable[[], Sequence[Any]]) -> Sequence[Any]:
        """Return the inputs that choose the arithmetic: none if it is given, or if measured accuracy does.

        Raises InputError if there are none to choose by.
        """
        if self.compute != "auto" or has_accuracy(model, self.quantizer):
            return ()
        found = examples()
        if not found:
            raise no_examples_error(model)
        return found

    def with_choice(self, choice: PrecisionChoice | None) -> "SessionArguments":
        """Return these options with the arithmetic that was chosen; unchanged if it was given."""
        if choice is None:
            return self
        bits = choice.chosen.weights
        weights = self.weights if bits == "auto" else str(bits)
        return replace(self, compute=choice.chosen.compute, weights=weights)

    def open_store(self, model: ElasticModel, on_progress: OnProgress) -> Store:
        """Open the store that a session would run from. Packs on first use."""
        refuse_options(model, self, ("weights",), _PLANNED)
        return api.open_packed_store(model, cache_folder(), on_progress, self.quantizer)

    def terms(
        self, model: ElasticModel, store: Store, on_progress: OnProgress
    ) -> tuple[DeviceProfile, SessionOptions]:
        """Return the profile and the options that a session on the model's store would run with."""
        options, cache, precision_options = self.options, cache_folder(), self._precision_options(model)
        if precision_options is not None:
            options = api.choose_options(store, options, precision_options, cache, on_progress, self.dilation)
        kept = api.profile_of(store, cache, options.n_threads, options.compute, on_progress)
        return emulate(kept, self.dilation), options


def has_accuracy(model: Model, quantizer: Quantizer | None = None) -> bool:
    """Return whether the accuracy of the model's submodels was measured. Raises StoreError.

    `quantizer` is that of the store that a text encoder is packed into, None for the default.
    """
    if isinstance(model, StoreModel):
        return model.manifest.accuracy is not None
    if isinstance(model, CheckpointModel) and quantizer in (None, "lloyd"):
        return (model.path / api.ACCURACY).is_file()
    return False


def no_examples_error(model: Model) -> InputError:
    """Return the error of `--compute auto` in a command that has no inputs of a model."""
    inputs = "texts" if isinstance(model, ElasticModel) else "inputs"
    return InputError(
        f"{model.name} has no measured accuracy for --compute auto to choose by, and this command has no "
        f"{inputs} to compare answers to: name the arithmetic with --compute fp32, bf16 or int8. "
        f"`pliant run --compute auto` with {inputs} shows the time and the error of each."
    )


def precision_of(session: Session[Any]) -> PrecisionChoice | None:
    """Return how the session's arithmetic was chosen; None if it was given."""
    if isinstance(session, ElasticSession):
        return session.options.precision
    return session.precision if isinstance(session, ArraySession) else None


def parse_numbers(text: str | None, name: str) -> tuple[int, ...] | None:
    """`"3,6,9"` -> (3, 6, 9); raises InputError naming the option."""
    return None if text is None else _list(text, int, name, "whole numbers such as 3,6,9")


def _list(text: str, kind: Callable[[str], int], name: str, wanted: str) -> tuple[int, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{name} {text!r}: give {wanted}, separated by commas.") from error
