"""`pliant profile`: measure this device with a model's shape, and keep it."""

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from pliant.api import open_elastic as api
from pliant.api.resolve import resolve_elastic
from pliant.cli.shared.show import console, print_json, progress_bar
from pliant.cli.shared.verb_options import Json, Precise, Source, Threads, numbers
from pliant.ir.device import DeviceProfile
from pliant.quantities import format_bytes, format_seconds
from pliant.settings import cache_folder, thread_count


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileArguments:
    """The options of `pliant profile`."""

    source: Source
    lengths: Annotated[
        str | None,
        typer.Option(help="Input lengths, such as 16,32,64.", show_default="16..256 and the limit"),
    ] = None
    threads: Threads = None
    compute: Precise = "fp32"
    seconds: Annotated[float, typer.Option(help="About how long to measure.", min=0.1)] = 6.0
    json: Json = False


def profile(args: ProfileArguments) -> None:
    """Measure cold reads, layers alone and while IO runs, tokenising, embedding and head."""
    model, cache = resolve_elastic(args.source, "profile"), cache_folder()
    how = api.Measuring(lengths=numbers(args.lengths, "--lengths"), seconds=args.seconds)
    with progress_bar() as on_progress, api.packed_store(model, cache, on_progress) as store:
        n_threads = thread_count(args.threads)
        measured = api.profile_of(store, cache, n_threads, args.compute, on_progress, measuring=how)
    if args.json:
        print_json(measured)
    else:
        show_profile(measured)


def show_profile(profile: DeviceProfile) -> None:
    """The device, its reads and its layers; each time as median and 95th percentile."""
    clock = f"{profile.frequency_Hz / 1e9:.2f} GHz" if profile.frequency_Hz else "unknown clock"
    why = f" ({profile.frequency_reason})" if profile.frequency_reason else ""
    typer.echo(
        f"{profile.cpu}, {clock}{why}, {profile.n_threads} threads, {format_bytes(profile.memory_bytes)}"
    )
    typer.echo(f"model shape: {profile.subject}")
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
