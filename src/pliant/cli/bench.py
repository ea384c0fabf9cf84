"""`pliant bench`: time a model, compare an ONNX model with other runtimes, and profile its steps."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.table import Table

from pliant.api.compile_onnx import compile, sample_feeds
from pliant.api.model import CompiledProgram, ElasticModel, Model, OnnxGraph
from pliant.cli.compile import Dims, parse_dims
from pliant.cli.peer_runtimes import PEERS, Run, open_peer
from pliant.cli.shared.refuse_options import refuse_options
from pliant.cli.shared.show import console, print_json, progress_bar
from pliant.cli.shared.trace_option import Trace, trace_file
from pliant.cli.shared.verb_options import (
    LENGTH,
    Arithmetic,
    Json,
    MemoryBound,
    Preload,
    SessionArguments,
    Threads,
    resolve_for,
    shipped,
)
from pliant.cli.shared.weight_bits import WeightBits, parse_weights
from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.quantities import format_seconds
from pliant.run.session.ports import fix_dims
from pliant.run.session.session import Session
from pliant.run.session.step_profile import StepProfile
from pliant.settings import thread_count


@dataclass(frozen=True, slots=True)
class RuntimeComparison:
    """One runtime: seconds a run, and the largest difference of its outputs from pliant's."""

    runtime: str
    median_s: float
    p95_s: float
    ratio: float
    difference: float | None


@dataclass(frozen=True, slots=True)
class BenchReport:
    """The output of `--profile --json`."""

    runtimes: list[RuntimeComparison]
    profile: StepProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchArguments:
    """The options of `pliant bench`."""

    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, a directory written by pliant compile, or a text model: a shipped one "
            "(sst2), a model directory, a store, random:CONFIG[:SEED].",
            autocompletion=shipped,
        ),
    ]
    against: Annotated[
        str | None,
        typer.Option(
            help=f"Runtimes, separated by commas: {', '.join(PEERS)}.",
            show_default="onnxruntime for an ONNX file, else none",
        ),
    ] = None
    dim: Dims = None
    bucket: Annotated[
        list[str] | None,
        typer.Option(help="Sizes to pad a dimension to, such as sequence=32,64,128; repeatable."),
    ] = None
    runs: Annotated[int, typer.Option(help="Number of timed runs of each runtime.", min=3)] = 50
    weights: WeightBits = None
    compute: Arithmetic = "fp32"
    threads: Threads = None
    latency: Annotated[
        str | None,
        typer.Option(
            help="Latency target of a text encoder, such as 20ms.",
            show_default="none: the most accurate answer",
        ),
    ] = None
    preload: Preload = None
    length: Annotated[
        int | None, typer.Option(help="Number of tokens of the timed text.", min=1, show_default=str(LENGTH))
    ] = None
    profile: Annotated[bool, typer.Option("--profile", help="Print the time of each step in pliant.")] = False
    trace: Trace = None
    json: Json = False
    memory: MemoryBound = None


def bench(args: BenchArguments) -> None:
    """Time a model in turns with other runtimes and compare the outputs; profile its steps."""
    model = resolve_for(args.model, "bench")
    names = _peers(args, model)
    with _open(args, model) as session:
        feeds = _feeds(args, model, session)
        n_threads = thread_count(args.threads)
        runners: dict[str, Run] = {"pliant": session.run}
        runners |= {name: open_peer(name, Path(args.model), n_threads) for name in names}
        rows = measure(runners, feeds, args.runs)
        steps = session.profile(feeds, args.runs) if args.profile or args.trace is not None else None
    if steps is not None and args.trace is not None:
        with trace_file(args.trace) as path:
            steps.write_trace(path)
    if args.json:
        print_json(BenchReport(rows, steps) if args.profile and steps is not None else rows)
        return
    _show(rows)
    typer.echo(f"{args.runs} runs each, in turns, {n_threads} threads")
    if args.profile and steps is not None:
        for table in steps.tables():
            console().print(table)
        typer.echo(steps.summary)


def _peers(args: BenchArguments, model: Model) -> list[str]:
    """Return the runtimes to compare with. Raises InputError for a model that they cannot read."""
    if args.against is None:
        return ["onnxruntime"] if isinstance(model, OnnxGraph) else []
    names = [name for name in args.against.split(",") if name]
    if names and not isinstance(model, OnnxGraph):
        raise InputError(
            f"{model.name} is {model.kind}, and {', '.join(names)} cannot read it: leave out --against to "
            "time it alone, or export it to ONNX."
        )
    return names


def _open(args: BenchArguments, model: Model) -> Session[Any]:
    """Open the session to time. Raises InputError for options that a model of this kind does not have."""
    if not isinstance(model, ElasticModel):
        refuse_options(model, args, ("latency", "preload"))
    if isinstance(model, OnnxGraph | CompiledProgram):
        refuse_options(model, args, ("length",))
    if not isinstance(model, OnnxGraph):
        refuse_options(model, args, ("dim", "bucket", "weights"), "those are for ONNX files")
    if isinstance(model, OnnxGraph):
        dims, buckets = parse_dims(args.dim), parse_buckets(args.bucket)
        return compile(
            model.content,
            dims={x: n for x, n in dims.items() if x not in buckets},
            buckets=buckets,
            threads=args.threads,
            weights=parse_weights(args.weights),
            compute=args.compute,
            memory=args.memory,
        )
    asked = SessionArguments(
        args.model,
        args.latency,
        args.preload,
        length=args.length,
        threads=args.threads,
        compute=args.compute,
        memory=args.memory,
    )
    with progress_bar() as on_progress:
        return asked.open(model, on_progress, takes=("length",))


def _feeds(args: BenchArguments, model: Model, session: Session[Any]) -> dict[str, np.ndarray]:
    if isinstance(model, OnnxGraph | CompiledProgram):
        sizes = session.sample(LENGTH)  # as `pliant profile` takes them; `--dim` says otherwise
        given = [fix_dims(port, parse_dims(args.dim)) for port in session.inputs]
        return sample_feeds([_sized(port, sizes[port.name].shape) for port in given])
    return session.sample(min(args.length or LENGTH, session.max_length))


def _sized(port: Port, shape: tuple[int, ...]) -> Port:
    """Return `port` with its open dimensions set to the sizes in `shape`."""
    if port.dims is None:
        return port
    named = zip(port.dims, shape, strict=True)
    return replace(port, dims=tuple(d if isinstance(d, int) else n for d, n in named))


def _show(rows: list[RuntimeComparison]) -> None:
    table = Table("runtime", "median", "95th percentile", "pliant / this", "largest difference")
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:.2e}"
        times = format_seconds(row.median_s), format_seconds(row.p95_s)
        table.add_row(row.runtime, *times, f"{row.ratio:.2f}", difference)
    console().print(table)


def parse_buckets(texts: list[str] | None) -> dict[str, tuple[int, ...]]:
    """`["sequence=32,64"]` -> {"sequence": (32, 64)}; raises InputError naming an invalid bucket."""
    buckets = {}
    for text in texts or ():
        name, _, sizes = text.rpartition("=")
        if not name or not all(size.isdecimal() for size in sizes.split(",")):
            raise InputError(f"--bucket {text!r}: give name=numbers, such as sequence=32,64,128.")
        buckets[name] = tuple(map(int, sizes.split(",")))
    return buckets


def measure(runners: dict[str, Run], feeds: dict[str, np.ndarray], runs: int) -> list[RuntimeComparison]:
    """Time all runners in turns; their outputs are compared with those of `runners["pliant"]`."""
    ours = runners["pliant"](feeds)
    differences: dict[str, float | None] = {"pliant": None}
    for name, run in runners.items():
        answers = run(feeds)
        if name != "pliant":
            differences[name] = max((_difference(ours[y], answers[y]) for y in ours), default=0.0)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(runs):
        for name, run in runners.items():
            start = time.perf_counter()
            run(feeds)
            times[name].append(time.perf_counter() - start)
    base = median(times["pliant"])
    return [
        RuntimeComparison(name, median(t), float(np.quantile(t, 0.95)), base / median(t), differences[name])
        for name, t in times.items()
    ]


def _difference(a: np.ndarray, b: np.ndarray) -> float:
    if a.shape != b.shape:
        raise InputError(
            f"an output has shape {a.shape} here and {b.shape} in the other runtime; check the model."
        )
    return float(np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0.0))
