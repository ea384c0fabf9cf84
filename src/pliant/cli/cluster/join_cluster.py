"""`pliant worker`: lend this device to a cluster."""

import platform
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from pliant import __version__
from pliant.cli.cluster.cluster_options import DataEngine, DataPort, KeyFile, MemoryOption
from pliant.cli.cluster.process_metrics import MetricsAddress, worker_page
from pliant.cli.shared.show import print_json, say
from pliant.cli.shared.verb_options import Json, LogLines, Threads, shipped
from pliant.quantities import parse_seconds
from pliant.serve.telemetry.log_lines import log_to
from pliant.settings import cache_folder, thread_count

if TYPE_CHECKING:
    from pliant.cluster.member.worker import ClusterWorker

PROBLEM_S = 2.0
"""A problem that lasts this long is reported."""
LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArguments:
    """The options of `pliant worker`."""

    join: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of a primary; repeat it for several primaries.")
    ] = None
    discover: Annotated[
        bool,
        typer.Option("--discover", help="Join primaries that were started with --announce (multicast DNS)."),
    ] = False
    name: Annotated[str | None, typer.Option(help="Name of this device.", show_default="the host's name")] = (
        None
    )
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Model that this device holds: directory, store, name, or random:CONFIG[:SEED]; "
            "repeatable; the default is sst2.",
            autocompletion=shipped,
        ),
    ] = None
    key: KeyFile = None
    engine: DataEngine = "zmq"
    data_port: DataPort = None
    memory: MemoryOption = None
    threads: Threads = None
    dilate_compute: Annotated[
        str,
        typer.Option(
            help="Emulate a device that computes this many times slower; @FILE reads it "
            "from a file each time it is needed."
        ),
    ] = "1"
    silence: Annotated[
        str,
        typer.Option(
            help="Heartbeat timeout: a primary that is silent for longer counts as lost. "
            "Increase it on a busy device."
        ),
    ] = "1s"
    metrics: MetricsAddress = None
    log_format: LogLines = "text"
    json: Json = False


def worker(args: WorkerArguments) -> None:
    """Join a primary and run this device's part of its models, until Ctrl-C."""
    from pliant.api.member_options import cluster_key, data_ports, dilation_source, memory_source
    from pliant.api.open_encoder import open_encoder
    from pliant.cluster.control.timeouts import ClusterTimeouts
    from pliant.cluster.lead.open_member import MemberOptions, open_worker

    log_to(None, args.log_format, is_verbose=False)
    if not (args.join or args.discover):
        raise typer.BadParameter(
            "give --join HOST:PORT, or --discover if a primary was started with --announce."
        )
    cache = cache_folder()
    sources = [open_encoder(one, cache) for one in args.model or ("sst2",)]

    def report(text: str) -> None:
        if args.json:
            print_json({"event": text})
        else:
            say(text)

    options = MemberOptions(
        name=args.name or platform.node() or "worker",
        key=cluster_key(args.key),
        version=__version__,
        cache=cache,
        n_threads=thread_count(args.threads),
        free_bytes=memory_source(args.memory),
        dilation=dilation_source(args.dilate_compute),
        engine=args.engine,
        data_ports=data_ports(args.data_port),
        patience=ClusterTimeouts(silence_s=parse_seconds(args.silence)),
        on_event=report,
    )
    ended = Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    found: SimpleQueue[str] = SimpleQueue()
    with ExitStack() as ends:
        if args.discover:
            from pliant.cluster.control.discover_primaries import discover_primaries

            ends.enter_context(discover_primaries(options.key, found.put))
        known = list(args.join or ())
        if not known:
            report(f"{options.name} looks for primaries that hold its key")
        while not known and not ended.wait(LOOK_S):
            known = _taken(found)
        if known:
            member = ends.enter_context(open_worker(options, known, sources))
            if args.metrics is not None:
                ends.enter_context(worker_page(args.metrics, member, report))
            report(f"{options.name} connects to {', '.join(known)}")
            _stay(member, found, ended, report)
    report(f"{options.name} stopped")


def _stay(
    member: "ClusterWorker", found: "SimpleQueue[str]", ended: Event, report: Callable[[str], None]
) -> None:
    """Until shutdown, connect to discovered primaries; report problems that last over PROBLEM_S."""
    before: set[str] = set()
    said: set[str] = set()
    while not ended.wait(PROBLEM_S):
        for address in _taken(found):
            member.join(address)
        now = set(member.problems)
        for problem in sorted(now & before - said):
            report(problem)
        said, before = said | now & before, now


def _taken(found: "SimpleQueue[str]") -> list[str]:
    return [found.get() for _ in range(found.qsize())]
