"""Options that several verbs share, and how they become a session."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any

import typer

from pliant.api import open_elastic as api
from pliant.api.model import VERBS, ElasticModel, Model, OnnxGraph, refused
from pliant.api.open_elastic import Baseline, Choosing, OnProgress
from pliant.api.open_session import open as open_session
from pliant.api.resolve import resolve, shipped_models
from pliant.cli.shared.refuse_options import option_text, refuse_options
from pliant.cli.shared.weight_bits import WeightBits, weights_of
from pliant.errors import InputError
from pliant.ir.device import DeviceProfile, emulate
from pliant.ir.dilation import Dilation
from pliant.models.encoder.encoder_graph import Precise
from pliant.plan.precision import TOLERANCE, Compute
from pliant.plan.result import WHOLE_S
from pliant.plan.submodel.plan_options import OURS, PAPER, Choice, Depths, PlanOptions
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.process_memory import bound_of, preload_of
from pliant.run.session.session import Session
from pliant.run.submodel.elastic_session import ElasticSession
from pliant.run.submodel.planning import MARGIN, SessionOptions
from pliant.settings import cache_folder, thread_count
from pliant.store.coding.quantize import Quantizer
from pliant.store.read import Store


def shipped(incomplete: str) -> list[str]:
    """Names of shipped models that begin so, for shell completion; shells complete paths themselves."""
    return [name for name in shipped_models() if name.startswith(incomplete)]


Source = Annotated[
    str,
    typer.Argument(
        help="A model that ships with pliant (sst2), a model directory, a store, a hub id, an ONNX file, "
        "what pliant compile wrote, or random:CONFIG[:SEED].",
        autocompletion=shipped,
    ),
]
Threads = Annotated[
    int | None, typer.Option(help="Compute threads.", show_default="the cores it may use", min=1)
]
Arithmetic = Annotated[Precise, typer.Option("--compute", help="Arithmetic of the matrix products.")]
System = Annotated[
    Baseline | None, typer.Option(help="Plan and run as one of the systems STI is compared with.")
]
LayersLeft = Annotated[
    Depths | None,
    typer.Option(
        help="Leave layers out only where the model was trained for it or its accuracy measured, or of any "
        "model, at whatever that costs in accuracy.",
        show_default=OURS.depths,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


_ANY_MODEL = ("threads", "memory", "dilate_compute")
"""Options of a session that are not for text encoders alone."""
LENGTH = 64
"""Tokens that are planned for, or timed, where no other number is asked for."""


_PLANNED = "the plan chooses the bits of its weights; bound them with --memory or --preload"


def resolve_for(source: str, verb: str) -> Model:
    """The model that `source` names. Raises ModelError naming verbs that take it, where `verb` does not."""
    model = resolve(source)
    if verb not in VERBS[type(model)]:
        raise refused(model, f"pliant {verb}")
    return model


MemoryBound = Annotated[
    str | None,
    typer.Option(
        help="Most that the session adds to the process, such as 8MB: weights, buffers, activations.",
        show_default="unbounded",
    ),
]
Preload = Annotated[
    str | None,
    typer.Option(
        help="Weights kept in memory between runs, such as 200KB.",
        show_default="0, or what the planner makes of --memory",
    ),
]


@dataclass(frozen=True, slots=True)
class SessionArguments:
    """The options that `run`, `plan` and `eval` share, as the command line gives them.

    None stands for the default of an option that `--paper` sets otherwise. Raises InputError where one of
    them contradicts it.
    """

    source: Source
    latency: Annotated[
        str | None,
        typer.Option(
            help="Target from text to answer, such as 20ms.", show_default="none: the most accurate answer"
        ),
    ] = None
    preload: Preload = None
    working: Annotated[
        str | None,
        typer.Option(
            help="Bound of the memory that layers in flight are read into, such as 1MB.",
            show_default="unbounded",
        ),
    ] = None
    length: Annotated[
        int | None,
        typer.Option(help="Input length, in tokens, that is planned for.", show_default=str(LENGTH)),
    ] = None
    threads: Threads = None
    best_effort: Annotated[
        bool, typer.Option("--best-effort", help="Run the smallest submodel when no plan meets the target.")
    ] = False
    anytime: Annotated[
        bool | None, typer.Option(help="Do without refinements that are late.", show_default="anytime")
    ] = None
    compute: Annotated[
        Compute,
        typer.Option(help="Arithmetic of the matrix products; auto is the fastest within the tolerance."),
    ] = "fp32"
    tolerance: Annotated[
        float,
        typer.Option(help="Of --compute auto: expected accuracy that may be lost, as a fraction.", min=0.0),
    ] = TOLERANCE
    choose: Annotated[
        Choice | None,
        typer.Option(
            help="Run the most accurate submodel, where that was measured, or the largest.",
            show_default=OURS.choose,
        ),
    ] = None
    depths: LayersLeft = None
    io_reserve: Annotated[
        float | None,
        typer.Option(
            help="Keep the target even if reads take this many times their 95th percentile.",
            show_default="learnt from the spread of reads",
            min=1.0,
        ),
    ] = None
    adapt: Annotated[
        bool | None,
        typer.Option(
            help="Plan for compute and reads as the latest answers took them.", show_default="adapt"
        ),
    ] = None
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="Plan and run as STI does: its planner, the largest submodel of any depth, no slack, no "
            "lead, no late refinements left out, no margin, its quantizer (the model is packed so).",
        ),
    ] = False
    dilate_compute: Annotated[
        float, typer.Option(help="Emulate a device that computes this many times slower.")
    ] = 1.0
    dilate_io: Annotated[float, typer.Option(help="Emulate a disk that reads this many times slower.")] = 1.0
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
        """The target in seconds, where there is one."""
        return None if self.latency is None else parse_seconds(self.latency)

    @property
    def options(self) -> SessionOptions:
        return SessionOptions(
            target_s=self.target_s or WHOLE_S,
            preload_bytes=preload_of(self.preload, self.memory),
            memory_bytes=bound_of(self.memory),
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
        """What the store must be made by; None for any."""
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
        baseline: Baseline | None = None,
        takes: tuple[str, ...] = (),
    ) -> Session[Any]:
        """The session of any model. Raises InputError naming options that a model of its kind has not.

        `takes` are options that the verb itself has a use for, whatever the model.
        """
        if isinstance(model, ElasticModel):
            return self.open_elastic(model, on_progress, baseline)
        known = (*_ANY_MODEL, *takes, *(("weights", "compute") if isinstance(model, OnnxGraph) else ()))
        others = {f.name for f in fields(self)} - {"source", *known}
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in known)
        refuse_options(model, self, others, f"of a session's options it has {flags}")
        return open_session(
            self.source,
            threads=self.threads,
            dilation=Dilation(self.dilate_compute),
            memory=self.memory,
            weights=weights_of(self.weights),
            compute=self.compute,
        )

    def open_elastic(
        self, model: ElasticModel, on_progress: OnProgress, baseline: Baseline | None = None
    ) -> ElasticSession:
        """The session, ours or a baseline's; packs and profiles first where that was never done."""
        refuse_options(model, self, ("weights",), _PLANNED)
        return api.open_elastic(
            model,
            self.options,
            dilation=self.dilation,
            baseline=baseline,
            quantizer=self.quantizer,
            on_progress=on_progress,
            choosing=self.choosing,
        )

    @property
    def choosing(self) -> Choosing | None:
        """How the arithmetic is chosen, where it is."""
        return Choosing((), self.tolerance) if self.compute == "auto" else None

    def open_store(self, model: ElasticModel, on_progress: OnProgress) -> Store:
        """The store that a session would run from; packed first where that was never done."""
        refuse_options(model, self, ("weights",), _PLANNED)
        return api.packed_store(model, cache_folder(), on_progress, self.quantizer)

    def terms(self, store: Store, on_progress: OnProgress) -> tuple[DeviceProfile, SessionOptions]:
        """The profile and the options that a session would run with."""
        options, cache, choosing = self.options, cache_folder(), self.choosing
        if choosing is not None:
            options = api.chosen_options(store, options, choosing, cache, on_progress, self.dilation)
        kept = api.profile_of(store, cache, options.n_threads, options.compute, on_progress)
        return emulate(kept, self.dilation), options


def numbers(text: str | None, name: str) -> tuple[int, ...] | None:
    """`"3,6,9"` -> (3, 6, 9); raises InputError naming the option."""
    return None if text is None else _list(text, int, name, "whole numbers such as 3,6,9")


def _list(text: str, kind: Callable[[str], int], name: str, wanted: str) -> tuple[int, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"{name} {text!r}: give {wanted}, separated by commas.") from error
