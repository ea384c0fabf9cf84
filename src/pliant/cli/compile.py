"""`pliant compile`: compile a model to a directory that can be loaded, or linked as C."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from pliant.api import compile_onnx as compiled
from pliant.api.compile_library import LibraryOptions, compile_elastic, compile_recurrent, read_profile
from pliant.api.model import (
    CheckpointModel,
    ElasticModel,
    OnnxGraph,
    RecurrentNetwork,
    StoreModel,
    unsupported_error,
)
from pliant.cli.library_summary import show_library
from pliant.cli.shared.feed_file import read_feeds
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import console, print_json, progress_bar, say
from pliant.cli.shared.verb_options import LENGTH, Arithmetic, Json, Threads, resolve_for, shipped
from pliant.cli.shared.weight_bits import parse_weights
from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image
from pliant.errors import InputError, ModelError
from pliant.ir.port import static_port
from pliant.kernels.emit.isa import TARGETS, TargetName, host_isa
from pliant.models.onnx.onnx_text import TEXT, open_onnx_text, text_folder
from pliant.quantities import format_bytes, format_seconds, parse_bytes, parse_seconds
from pliant.run.graph.schedule_graph import ScheduleReport
from pliant.settings import thread_count

Emit = Literal["session", "c"]
ScheduleName = Literal["static", "none", "paper", "exact"]
_RESERVED_NAMES = """
alignas alignof and asm auto bool break case catch char class compl concept const constexpr continue decltype
default delete do double else enum explicit export extern false float for friend goto if inline int linux long
mutable namespace new noexcept not nullptr operator or private protected public register requires restrict
return short signed sizeof static struct switch template this throw true try typedef typeid typename union
unix unsigned using virtual void volatile while xor
address context copy entry fault feature helper processor row slot space
drand48_data errno f_owner_ex file_handle flock flock64 iovec itimerspec itimerval obstack pthread_attr_t
random_data sched_param sigaction sigcontext sigevent sigstack sigval stat stat64 statx statx_timestamp
timespec timeval timex timezone tm ucontext_t
elf_prpsinfo elf_prstatus elf_siginfo esr_context extra_context fpmr_context fpsimd_context gcs_context
poe_context sve_context tpidr2_context user_fpsimd_struct user_regs_struct za_context zt_context
fts iconv mq pidfd sem shm
alloca cpuid elf endian fcntl features limits math pthread sched signal stdarg stdbool stddef stdint stdio
stdlib string strings time unistd
all clean edit_cache example help install package rebuild_cache test
"""
"""Words of C and C++; types in the source of a library, and its other header; types in the system's headers,
functions of the system such as `sem_open`, and headers, which NAME.h would replace; targets of CMake.
"""
_TEXT_ONLY = "it is for text models in C; this model is compiled for its shapes"
Dims = Annotated[
    list[str] | None, typer.Option("--dim", help="Fix a symbolic dimension, such as batch=1; repeatable.")
]


@dataclass(frozen=True, slots=True)
class CompileSummary:
    """The output of `--json`. `measured_elsewhere`: the schedule was chosen by times of another CPU."""

    nodes: int
    calls: int
    kernels: dict[str, int]
    arena_bytes: int
    weight_bytes: int
    schedule: ScheduleReport | None
    measured_elsewhere: bool
    output: str | None
    library: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileArguments:
    """The options of `pliant compile`."""

    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file; with --emit c also a text model: a shipped one, a directory, a store.",
            autocompletion=shipped,
        ),
    ]
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Directory to write.")] = None
    dim: Dims = None
    emit: Annotated[
        Emit, typer.Option(help="Write a directory for pliant.load, or C source and a library.")
    ] = "session"
    target: Annotated[Literal["native", TargetName], typer.Option(help="The CPU to compile for.")] = "native"
    without: Annotated[
        list[str] | None, typer.Option("--without", help="Name of a compiler pass to leave out; repeatable.")
    ] = None
    schedule: Annotated[
        ScheduleName,
        typer.Option(
            help="How layouts and loops are chosen: static: by a rule; none: "
            "not at all; paper: by FluidML's votes; exact: by a solver."
        ),
    ] = "static"
    weights: Annotated[
        str, typer.Option("--weights", help="Weights of products: fp32, 8 bits, or codes of 1..6 bits.")
    ] = "fp32"
    compute: Arithmetic = "fp32"
    examples: Annotated[
        list[Path] | None,
        typer.Option(
            "--examples",
            help="Typical inputs (.npz or JSON), which codes of 1..6 bits are chosen for; repeatable.",
        ),
    ] = None
    threads: Threads = None
    latency: Annotated[
        str | None,
        typer.Option(help="For a text model in C: latency targets to plan for, such as 10ms,20ms."),
    ] = None
    preload: Annotated[
        str, typer.Option(help="For a text model in C: bytes of weights to keep in memory, such as 200KB.")
    ] = "0KB"
    working: Annotated[
        str | None,
        typer.Option(
            help="For a text model in C: limit of the memory for layers that are being read, such as 1MB.",
            show_default="no limit",
        ),
    ] = None
    length: Annotated[
        int,
        typer.Option(
            help="For a text model in C: maximum input length in tokens; targets hold up to it.", min=1
        ),
    ] = LENGTH
    profile: Annotated[
        Path | None,
        typer.Option(
            help="For a text model in C: profile of the target device, whose threads are the default.",
            show_default="this device's",
        ),
    ] = None
    json: Json = False


def compile(args: CompileArguments) -> None:
    """Compile an ONNX model, or a text model to C, and print a summary."""
    model = resolve_for(args.model, "compile")
    for_cpu = Target(TARGETS.get(args.target) or host_isa(), thread_count(args.threads))
    match model:
        case StoreModel() | CheckpointModel() | RecurrentNetwork():
            refuse_options(model, args, ("dim", "without", "schedule", "weights", "examples"))
            _compile_text(args, model, for_cpu)
        case OnnxGraph():
            refuse_options(model, args, ("latency", "preload", "working", "length", "profile"), _TEXT_ONLY)
            _compile_graph(args, model, for_cpu)
        case _:
            raise unsupported_error(model, "pliant compile")


def _compile_text(args: CompileArguments, model: ElasticModel | RecurrentNetwork, for_cpu: Target) -> None:
    if args.emit != "c" or args.output is None:
        raise InputError(
            f"{model.name} is {model.kind}, which is compiled to a C library: give --emit c and -o DIRECTORY."
        )
    if isinstance(model, RecurrentNetwork):
        only_way = ("latency", "preload", "working", "profile", "compute")
        refuse_options(model, args, only_way, "it answers in one way")
    if args.profile is not None and args.threads is None:
        for_cpu = replace(for_cpu, n_threads=read_profile(args.profile).n_threads)
    options = LibraryOptions(
        targets_s=tuple(parse_seconds(t) for t in args.latency.split(",")) if args.latency else (),
        preload_bytes=parse_bytes(args.preload),
        working_bytes=None if args.working is None else parse_bytes(args.working),
        length=args.length,
        target=for_cpu,
        compute=args.compute,
        profile=args.profile,
    )
    name = identifier(Path(model.name))
    if isinstance(model, RecurrentNetwork):
        report = compile_recurrent(model, name, options, args.output)
    else:
        with progress_bar() as on_progress:
            report = compile_elastic(model, name, options, args.output, on_progress)
    show_library(report, for_cpu.isa, as_json=args.json)


def _compile_graph(args: CompileArguments, model: OnnxGraph, for_cpu: Target) -> None:
    graph, image, report = compiled.compile_image(
        args.model,
        for_cpu,
        dims=parse_dims(args.dim),
        without=args.without or (),
        schedule=args.schedule,
        weights=parse_weights(args.weights),
        compute=args.compute,
        examples=[read_feeds(path) for path in args.examples or ()],
    )
    library, reason = None, ""
    if args.output is not None and args.emit == "c":
        emitted = write_c(image, identifier(Path(args.model)), args.output)
        library, reason = emitted.library, emitted.reason
    elif args.output is not None:
        save(image, args.output, model.identity, _text_files(model, image))
    said = CompileSummary(
        nodes=len(graph.nodes),
        calls=len(image.calls),
        kernels=dict(Counter(call.kernel.name for call in image.calls)),
        arena_bytes=image.arena_bytes,
        weight_bytes=_weight_bytes(image),
        schedule=report,
        measured_elsewhere=args.schedule in ("paper", "exact") and for_cpu.isa != host_isa(),
        output=None if args.output is None else str(args.output),
        library=None if library is None else str(library),
    )
    if args.json:
        print_json(said)
        return
    _show(said, reason)


def _text_files(model: OnnxGraph, image: Image) -> dict[str, Path]:
    """Return the files by which the compiled model reads texts, by their names in its directory."""
    ports = [static_port(name, type_) for name, type_ in image.inputs.items()]
    folder = None if model.path is None else text_folder(model.path)
    try:
        if model.path is None or folder is None or open_onnx_text(model.path, ports) is None:
            return {}
    except ModelError as error:  # arrays do not need it
        say(f"{model.name} reads no texts: {error}")
        return {}
    return {f"{TEXT}/{name}": folder / name for name in ("tokenizer.json", "config.json")}


def parse_dims(texts: list[str] | None) -> dict[str, int]:
    """`["batch=1"]` -> {"batch": 1}; raises InputError naming an invalid dimension."""
    dims = {}
    for text in texts or ():
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal():
            raise InputError(f"--dim {text!r}: give name=number, such as batch=1.")
        dims[name] = int(size)
    return dims


def identifier(model: Path) -> str:
    """Return a name for the C library of the model at `model`, which C, C++ and CMake accept."""
    name = "".join(c if c.isascii() and c.isalnum() else "_" for c in model.stem)
    return name if name[:1].isalpha() and name not in _RESERVED_NAMES.split() else f"model_{name}"


def _weight_bytes(image: Image) -> int:
    return sum(a.nbytes for a in image.constants.values()) + sum(p.n_bytes for p in image.packed.values())


def _show_schedule(report: ScheduleReport) -> None:
    table = Table("schedule", report.kind, title="layouts and loops")
    table.columns[1].justify = "right"
    rows: dict[str, object] = {
        "edges": report.edges,
        "candidate layouts": report.candidates,
        "edges with three or more": report.choosable,
        "edges turned": report.turned,
        "sequences": report.sequences,
        "conflicts": report.conflicts,
        "reorders inserted": report.reorders,
        "transposes left": report.transposes,
        "forms measured": report.measured,
        "planning": format_seconds(report.planning_s),
    }
    if report.default_s:
        rows |= {
            "predicted": format_seconds(report.predicted_s),
            "predicted, default layouts": format_seconds(report.default_s),
            "predicted gain": f"{report.gain:.1%}",
        }
    for name, value in rows.items():
        table.add_row(name, str(value))
    console().print(table)


def _show(said: CompileSummary, reason: str) -> None:
    table = Table("kernel", "calls", title=f"{said.nodes} operators, {said.calls} kernel calls")
    table.columns[1].justify = "right"
    for name, n in sorted(said.kernels.items(), key=lambda entry: -entry[1]):
        table.add_row(name, str(n))
    console().print(table)
    if said.schedule is not None:
        _show_schedule(said.schedule)
    if said.measured_elsewhere:
        typer.echo("the schedule was measured on this CPU, not on its target, where another may be faster")
    typer.echo(f"arena {format_bytes(said.arena_bytes)}, weights {format_bytes(said.weight_bytes)}")
    if said.output is not None:
        typer.echo(f"written to {said.output}")
    if said.library is not None:
        typer.echo(f"linked as {said.library}")
    elif reason:
        typer.echo(f"not linked: {reason}")
