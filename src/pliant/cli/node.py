"""`pliant node`: answer requests over HTTP."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pliant import __version__, system
from pliant.cli.cluster.cluster_options import KeyFile, Slower
from pliant.cli.shared.command import NamedOptions
from pliant.cli.shared.show import print_json, say
from pliant.cli.shared.verb_options import (
    AnyArithmetic,
    Json,
    LayersLeft,
    LogLines,
    MemoryBound,
    Threads,
    Tolerance,
    shipped,
)
from pliant.cli.shared.weight_bits import WeightBits
from pliant.plan.precision import TOLERANCE
from pliant.quantities import parse_bytes, parse_seconds
from pliant.run.process_memory import MemoryBudget
from pliant.serve.access.rates import parse_rates
from pliant.serve.access.security import parse_address, read_tokens
from pliant.serve.http.connections.arrival_loop import ArrivalLoop
from pliant.serve.telemetry.log_lines import log_to

LEARN_S = 3.0
"""A node may time its model so long before it starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArguments:
    """The options of `pliant node`."""

    model: Annotated[
        list[str] | None,
        typer.Argument(
            help="A model that ships with pliant, a store, a directory, or an ONNX file. NAME=MODEL "
            "sets its name. Several models share --memory.",
            autocompletion=shipped,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file with these options and a `model` section for each model; read again on SIGHUP."
        ),
    ] = None
    models: Annotated[
        Path | None,
        typer.Option(
            help="Folder of models that operators may load at any time: DIR/NAME.onnx, DIR/NAME or "
            "DIR/NAME/VERSION."
        ),
    ] = None
    listen: Annotated[
        str, typer.Option(help="Address to serve HTTP at: HOST:PORT; port 0 selects a free port.")
    ] = "127.0.0.1:8080"
    grpc: Annotated[
        str | None,
        typer.Option(
            help="Also serve gRPC at HOST:PORT, with the tokens and certificates of HTTP; port 0 "
            "selects a free port. Needs the extra `grpc`."
        ),
    ] = None
    upstream: Annotated[
        list[str] | None, typer.Option(help="URL of a node to which requests may be passed on; repeatable.")
    ] = None
    announce: Annotated[
        bool,
        typer.Option(
            "--announce",
            help="Announce this node to `pliant node --discover`, and its cluster to `pliant worker "
            "--discover` (multicast DNS).",
        ),
    ] = False
    discover: Annotated[
        bool,
        typer.Option("--discover", help="Use announced nodes as upstreams (multicast DNS)."),
    ] = False
    address: Annotated[
        str | None,
        typer.Option(
            help="URL at which other nodes reach this node.", show_default="the address of --listen"
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(help="File of client tokens, one a line; clients must send one as bearer token."),
    ] = None
    peer_token_file: Annotated[
        Path | None,
        typer.Option(help="File of peer tokens for other nodes, one a line; the first is sent to upstreams."),
    ] = None
    operator_token_file: Annotated[
        Path | None,
        typer.Option(
            help="File of operator tokens, one a line; operators change upstreams, load models and "
            "use `route explain`."
        ),
    ] = None
    peer_network: Annotated[
        list[str] | None,
        typer.Option(
            help="Network (10.0.0.0/8) or host name in which nodes may be notified of changes, in "
            "addition to the address that they call from; repeatable."
        ),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow listening beyond loopback without tokens.")
    ] = False
    client_rate: Annotated[
        str | None,
        typer.Option(
            help="Limit of requests a second for each client (its token, else its address): RATE or "
            "RATE:BURST. More are refused with 429.",
            show_default="no limit",
        ),
    ] = None
    client_bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Limit of bytes a second for each client, requests and answers: 10MB, or 10MB:50MB "
            "with a burst.",
            show_default="no limit",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate of this node, in PEM.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Private key of the certificate, in PEM.")] = None
    ca: Annotated[
        Path | None,
        typer.Option(help="CA certificates to verify upstreams with.", show_default="system"),
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(
            help="CA certificates to verify nodes below with. Callers without such a "
            "certificate are not accepted as nodes."
        ),
    ] = None
    model_name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model in requests; for several models use NAME=MODEL.",
            show_default="from its source",
        ),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of this node.", show_default="its address")] = None
    latency: Annotated[
        str | None,
        typer.Option(
            help="Default deadline of requests. The node reduces accuracy to meet it, and refuses "
            "requests that cannot meet it.",
            show_default="none: the most accurate answer",
        ),
    ] = None
    best_effort: Annotated[
        bool,
        typer.Option("--best-effort", help="If a deadline cannot be met, answer late instead of refusing."),
    ] = False
    accuracy_floor: Annotated[
        float | None,
        typer.Option(
            help="Default accuracy floor of requests, 0 to 1. Without a deadline, late reads are waited for.",
            min=0,
            max=1,
        ),
    ] = None
    preload: Annotated[
        str | None,
        typer.Option(
            help="Bytes of a text encoder's weights to keep in memory.",
            show_default="100MB, or planned from --memory",
        ),
    ] = None
    threads: Threads = None
    depths: LayersLeft = None
    queue: Annotated[
        int, typer.Option(help="Number of requests that may wait. More are refused with 503.", min=0)
    ] = 64
    compute_workers: Annotated[
        int | None,
        typer.Option(
            help="Number of batches that run at the same time, each on its part of the threads.",
            min=1,
            show_default="one for each thread, up to 4 threads; else 2 to 4",
        ),
    ] = None
    settle: Annotated[
        str,
        typer.Option(
            help="How long to accept requests after SIGTERM while /v2/health/ready returns 503, so "
            "that load balancers stop sending to this node."
        ),
    ] = "5s"
    objective: Annotated[
        str,
        typer.Option(
            help="Cost to minimize among equally accurate answers, for requests that start at this node: "
            "`time`, `energy` (joules of this device), or `mix:W`, which is (1 - W) seconds + W joules."
        ),
    ] = "time"
    power: Annotated[
        str | None,
        typer.Option(help="Power that computing draws above idle, in watts, or `measure`."),
    ] = None
    radio: Annotated[
        str | None,
        typer.Option(
            help="Energy model of the radio to upstreams: `lte`, or a JSON file.", show_default="no energy"
        ),
    ] = None
    worker_power: Annotated[
        list[str] | None,
        typer.Option(
            help="Power of a cluster's worker: NAME=WATTS; repeatable. Other workers count as mains powered."
        ),
    ] = None
    cluster_radio: Annotated[
        str | None,
        typer.Option(
            help="Energy model of the radio by which this device exchanges with the cluster's workers: "
            "`lte`, or a JSON file.",
            show_default="no energy",
        ),
    ] = None
    worker_radio: Annotated[
        list[str] | None,
        typer.Option(
            help="The same of a cluster's worker: NAME=lte, or NAME=FILE; repeatable. Other workers count as "
            "connected by cable."
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Lead a cluster at HOST:PORT as a second endpoint; workers join with `pliant worker "
            "--join HOST:PORT`."
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of the cluster's workers to wait for before serving.",
            min=0,
            show_default="0 where this device can answer, else 1",
        ),
    ] = None
    key: KeyFile = None
    dilate: Slower = 1.0
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Log every request: its id, endpoint and time."),
    ] = False
    log_format: LogLines = "text"
    page_texts: Annotated[
        bool,
        typer.Option("--page-texts", help="Show the texts of requests on the page, to all who may open it."),
    ] = False
    json: Json = False
    memory: MemoryBound = None
    weights: WeightBits = None
    compute: AnyArithmetic = "fp32"
    tolerance: Tolerance = TOLERANCE
    named: NamedOptions = frozenset()


def node(args: NodeArguments) -> None:
    """Answer requests over HTTP (Open Inference Protocol v2), until Ctrl-C or SIGTERM."""
    system.use_one_heap()
    from pliant.serve.node.start_node import NodeOptions, serve_models  # first: it names the missing extra

    given = args
    from pliant.cli.shared.node_models import (
        found_models,
        model_entries,
        objective_of,
        read_options,
        shares_memory,
        terms_of,
        tls_of,
        token_files_of,
    )
    from pliant.cli.shared.reload_node import reload_node
    from pliant.serve.node.node_controls import NodeControls
    from pliant.serve.node.power import read_radio
    from pliant.serve.repository.front_node import FrontNode
    from pliant.serve.upstream.callback import parse_callbacks

    args, tables = read_options(given)
    log_to(None, args.log_format, args.verbose)
    options = NodeOptions(
        listen=parse_address(args.listen),
        grpc=None if args.grpc is None else parse_address(args.grpc),
        version=__version__,
        name=args.name,
        tokens=() if args.token_file is None else read_tokens(args.token_file),
        peer_tokens=() if args.peer_token_file is None else read_tokens(args.peer_token_file),
        operator_tokens=() if args.operator_token_file is None else read_tokens(args.operator_token_file),
        callbacks=parse_callbacks(args.peer_network or ()),
        token_files=token_files_of(args),
        tls=tls_of(args),
        is_insecure=args.insecure,
        rates=parse_rates(args.client_rate, args.client_bandwidth),
        upstreams=tuple(args.upstream or ()),
        is_announced=args.announce,
        discovers=args.discover,
        address=args.address,
        queue=args.queue,
        compute_workers=args.compute_workers,
        page_texts=args.page_texts,
        settle_s=parse_seconds(args.settle),
        terms=terms_of(args),
        learn_s=LEARN_S,
        objective=objective_of(args),
        radio=None if args.radio is None else read_radio(args.radio),
    )

    def report(event: str, **more: object) -> None:
        if args.json:
            print_json({"event": event, **more})
        else:
            say(" ".join([event, *map(str, more.values())]))

    entries = model_entries(args, tables)
    memory = MemoryBudget(parse_bytes(args.memory)) if args.memory and shares_memory(args) else None

    def on_controls(controls: NodeControls) -> None:
        running = args

        async def reload() -> None:
            nonlocal running
            running = await reload_node(given, running, controls)

        if given.config is not None:
            controls.reloads.add(reload)

    def on_start(url: str, front: FrontNode, stop: Callable[[], None]) -> None:
        _exempt_from_collection()
        names = ", ".join(str(entry.key) for entry in entries) or "no model yet"
        more = {} if front.grpc is None else {"grpc": str(front.grpc)}
        report("serves", model=names, url=url, name=front.name, **more)

    find = found_models(args)
    with asyncio.Runner(loop_factory=ArrivalLoop) as runner:
        runner.run(serve_models(options, entries, on_start, memory, on_controls, find))
    report("stopped")


def _exempt_from_collection() -> None:
    """Have Python's collector skip what the process holds by now, nearly all of which it keeps to its end.

    A full collection stops the event loop while it visits every object. A flood of short connections asks
    for one every few seconds, and the modules and the model are most of what there is to visit. The second
    collection tells the collector how little is left: it runs once that has grown by a quarter.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
