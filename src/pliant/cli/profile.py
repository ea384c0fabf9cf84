"""`pliant profile`: measure this device for a model's shape and keep the profile; or time a model's steps."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.table import Table

from pliant.api import open_elastic as api
from pliant.api.model import ElasticModel
from pliant.cli.shared.show import console, print_json, progress_bar
from pliant.cli.shared.verb_options import (
    Arithmetic,
    Json,
    SessionArguments,
    SourceArgument,
    Threads,
    parse_numbers,
    resolve_for,
)
from pliant.ir.device import MAX_DISTURBED, DeviceProfile
from pliant.quantities import format_bytes, format_seconds
from pliant.run.session.session import Session
from pliant.run.session.step_profile import StepProfile
from pliant.settings import cache_folder, thread_count

_LENGTH = 64
"""Default input length to time: tokens, words, or the size of an open dimension."""
_LEAST_RUNS, _MOST_RUNS = 3, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileArguments:
    """The options of `pliant profile`."""

    source: SourceArgument
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Input lengths, such as 16,32,64; a text encoder's limit is measured with them.",
            show_default="16..256 and the limit; 64 without a plan",
        ),
    ] = None
    threads: Threads = None
    compute: Arithmetic = "fp32"
    seconds: Annotated[
        float, typer.Option(help="Approximate duration of the measurement, in seconds.", min=0.1)
    ] = 6.0
    json: Json = False


def profile(args: ProfileArguments) -> None:
    """Measure cold reads, layers with and without concurrent reads, tokenizer, embedding and head of a text
    encoder; for other models, print the time of each step."""
    model, lengths = resolve_for(args.source, "profile"), parse_numbers(args.lengths, "--lengths")
    if isinstance(model, ElasticModel):
        measured = _measured(args, model, lengths)
        if args.json:
            print_json(measured)
        else:
            show_profile(measured)
        return
    asked = SessionArguments(args.source, threads=args.threads, compute=args.compute)
    with progress_bar() as on_progress, asked.open(model, on_progress) as session:
        for length in lengths or (_LENGTH,):
            found = _steps(session, length, args.seconds / len(lengths or (_LENGTH,)))
            if args.json:
                print_json({"length": length, "profile": found})
            else:
                typer.echo(f"length {length}:\n{found}")


def _measured(args: ProfileArguments, model: ElasticModel, lengths: tuple[int, ...] | None) -> DeviceProfile:
    cache, how = cache_folder(), api.MeasurementOptions(lengths=lengths, seconds=args.seconds)
    with progress_bar() as on_progress, api.open_packed_store(model, cache, on_progress) as store:
        n_threads = thread_count(args.threads)
        return api.profile_of(store, cache, n_threads, args.compute, on_progress, measurement=how)


def _steps(session: Session[Any], length: int, seconds: float) -> StepProfile:
    """Return the profile of as many runs with an input of this length as fit into the time."""
    feeds = session.sample(length)
    once_s = session.profile(feeds, runs=_LEAST_RUNS).median_s
    return session.profile(feeds, runs=int(min(max(seconds / once_s, _LEAST_RUNS), _MOST_RUNS)))


def show_profile(profile: DeviceProfile) -> None:
    """Print the device, its reads and its layers; times as median and 95th percentile."""
    clock = f"{profile.frequency_Hz / 1e9:.2f} GHz" if profile.frequency_Hz else "unknown clock"
    why = f" ({profile.frequency_reason})" if profile.frequency_reason else ""
    typer.echo(
        f"{profile.cpu}, {clock}{why}, {profile.n_threads} threads, {format_bytes(profile.memory_bytes)}"
    )
    typer.echo(f"model shape: {profile.subject}")
    if profile.disturbed > MAX_DISTURBED:
        typer.echo(
            f"Other processes used the cores in {100 * profile.disturbed:.0f} % of the samples; these are "
            "left out or shortened. Profile again when the machine is quiet."
        )
    typer.echo(
        f"disk ({profile.io_method}): {format_seconds(profile.disk.latency_s)} a read + "
        f"{format_bytes(profile.disk.bandwidth_Bps)}/s, at the 95th percentile "
        f"{format_seconds(profile.disk_p95.latency_s)} + {format_bytes(profile.disk_p95.bandwidth_Bps)}/s; "
        f"{profile.io_slowdown:.2f} times slower while compute runs"
    )
    out = console()
    reads = _table("one shard, cold", ("bits", "bytes", "median ms", "p95 ms"))
    for r in profile.reads:
        reads.add_row(str(r.bits), str(r.n_bytes), _ms(r.time.median_s), _ms(r.time.p95_s))
    out.print(reads)
    layers = _table("one layer", ("tokens", "slices", "median ms", "p95 ms", "with IO", "p95 with IO"))
    for s in profile.layers:
        times = (s.alone.median_s, s.alone.p95_s, s.with_io.median_s, s.with_io.p95_s)
        layers.add_row(str(s.length), str(s.width), *map(_ms, times))
    out.print(layers)
    ends = _table("outside the layers, median ms", ("tokens", "tokenise", "embed", "head"))
    for o in profile.overheads:
        times3 = (o.tokenise.median_s, o.embed.median_s, o.head.median_s)
        ends.add_row(str(o.length), *map(_ms, times3))
    out.print(ends)


def _table(title: str, columns: tuple[str, ...]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
