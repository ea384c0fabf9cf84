"""`pliant node`: answer requests over HTTP."""

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from pliant import __version__
from pliant.api.model import ElasticModel, EncoderModel, Model, OnnxGraph
from pliant.api.open_endpoint import open_endpoint
from pliant.api.resolve import resolve
from pliant.cli.cluster.cluster_options import KeyFile, Slower, say
from pliant.cli.shared.refuse_options import option_text, refuse_options
from pliant.cli.shared.show import print_json
from pliant.cli.shared.verb_options import Json, LayersLeft, MemoryBound, Threads, shipped
from pliant.cli.shared.weight_bits import WeightBits, weights_of
from pliant.errors import InputError, NodeError
from pliant.ir.dilation import Dilation
from pliant.quantities import parse_bytes, parse_seconds
from pliant.route.objective import parse_objective
from pliant.route.terms import Terms
from pliant.run.process_memory import MemoryBudget
from pliant.run.session.session import Session
from pliant.serve.access.credentials import TokenFiles
from pliant.serve.access.rates import parse_rates
from pliant.serve.http.security import Tls, parse_address, read_tokens
from pliant.serve.telemetry.log_lines import LogFormat, log_to

LEARN_S = 3.0
"""A node may time its model so long before it starts."""
PATIENCE_S = 120.0
"""How long to wait for the workers of a cluster."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeArguments:
    """The options of `pliant node`."""

    model: Annotated[
        list[str],
        typer.Argument(
            help="A model that ships with pliant, a store, a directory, or an ONNX file. Several share "
            "--memory.",
            autocompletion=shipped,
        ),
    ]
    listen: Annotated[str, typer.Option(help="Where to answer: HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:8080"
    )
    grpc: Annotated[
        str | None,
        typer.Option(
            help="Answer the protocol over gRPC as well: HOST:PORT; port 0 takes a free one. Tokens and "
            "certificates are those of HTTP. Needs the extra `grpc`."
        ),
    ] = None
    upstream: Annotated[
        list[str] | None, typer.Option(help="A node to pass requests on to: URL; repeatable.")
    ] = None
    announce: Annotated[
        bool,
        typer.Option("--announce", help="Let `pliant node --discover` find this node (multicast DNS)."),
    ] = False
    discover: Annotated[
        bool,
        typer.Option(
            "--discover", help="Pass requests on to nodes that announce themselves as well (multicast DNS)."
        ),
    ] = False
    address: Annotated[
        str | None,
        typer.Option(help="URL at which other nodes reach this one.", show_default="where it listens"),
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(help="Bearer tokens, one a line: requests of clients must bring one."),
    ] = None
    peer_token_file: Annotated[
        Path | None,
        typer.Option(help="Bearer tokens of other nodes, one a line; the first is shown to upstreams."),
    ] = None
    operator_token_file: Annotated[
        Path | None,
        typer.Option(
            help="Bearer tokens, one a line, of who may add and remove upstreams (POST /v2/pliant/peers)."
        ),
    ] = None
    peer_network: Annotated[
        list[str] | None,
        typer.Option(
            help="Where nodes may be told of changes, besides the address they call from: a network such as "
            "10.0.0.0/8, or a host's name; repeatable."
        ),
    ] = None
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen where others can reach it without a token.")
    ] = False
    client_rate: Annotated[
        str | None,
        typer.Option(
            help="Requests a second of one client, by its token or else its address: RATE, or RATE:BURST; "
            "more are answered 429.",
            show_default="no limit",
        ),
    ] = None
    client_bandwidth: Annotated[
        str | None,
        typer.Option(
            help="Bytes a second of one client, of requests and answers: 10MB, or 10MB:50MB with a burst.",
            show_default="no limit",
        ),
    ] = None
    tls_cert: Annotated[Path | None, typer.Option(help="The certificate to show, in PEM.")] = None
    tls_key: Annotated[Path | None, typer.Option(help="Its key, in PEM.")] = None
    ca: Annotated[
        Path | None,
        typer.Option(help="What upstreams' certificates are held against.", show_default="system"),
    ] = None
    client_ca: Annotated[
        Path | None,
        typer.Option(help="What certificates of nodes below are held against: only who shows one is a node."),
    ] = None
    name: Annotated[
        str | None, typer.Option(help="What this node is called.", show_default="its address")
    ] = None
    latency: Annotated[
        str | None,
        typer.Option(
            help="When an answer is due that names no deadline: with less accuracy if it has to be, and "
            "refused where none is in time.",
            show_default="none: the most accurate answer",
        ),
    ] = None
    best_effort: Annotated[
        bool,
        typer.Option(
            "--best-effort", help="Answer late, as soon as can be, where a deadline cannot be kept."
        ),
    ] = False
    accuracy_floor: Annotated[
        float | None,
        typer.Option(help="Least accuracy of such an answer, late if it has to be.", min=0, max=1),
    ] = None
    preload: Annotated[
        str | None,
        typer.Option(
            help="Weights of a text encoder kept in memory.",
            show_default="100MB, or what the planner makes of --memory",
        ),
    ] = None
    threads: Threads = None
    depths: LayersLeft = None
    queue: Annotated[
        int, typer.Option(help="Requests that may wait; more are told to come again.", min=0)
    ] = 64
    settle: Annotated[
        str,
        typer.Option(
            help="How long to accept requests after SIGTERM, while /v2/health/ready says no: as long as "
            "balancers take to look elsewhere."
        ),
    ] = "5s"
    objective: Annotated[
        str,
        typer.Option(
            help="What is least where requests that start here go, among equally accurate answers: `time`, "
            "`energy` (joules of this device), or `mix:W`, (1 - W) seconds + W joules."
        ),
    ] = "time"
    power: Annotated[
        str | None,
        typer.Option(
            help="What this device draws while it computes, over what it draws idle: watts, or `measure`."
        ),
    ] = None
    radio: Annotated[
        str | None,
        typer.Option(
            help="What upstreams are reached by: `lte`, or a JSON file.", show_default="costs nothing"
        ),
    ] = None
    worker_power: Annotated[
        list[str] | None,
        typer.Option(
            help="What a worker of the cluster draws while it computes: NAME=WATTS; repeatable, the others "
            "run off the mains."
        ),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Have a cluster answer beside this device: HOST:PORT where `pliant worker --join` finds it."
        ),
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="Workers of the cluster to wait for.", min=0, show_default="1")
    ] = None
    key: KeyFile = None
    dilate: Slower = 1.0
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Say of each request, by its id, where it goes and what it took."),
    ] = False
    log_format: Annotated[
        LogFormat,
        typer.Option(
            help="Log lines on standard error: `text`, or `json`, an object a line. Both name the request, "
            "its trace, and the model's version."
        ),
    ] = "text"
    page_texts: Annotated[
        bool,
        typer.Option(
            "--page-texts", help="Show the texts of requests on the page, to whoever may look at it."
        ),
    ] = False
    json: Json = False
    memory: MemoryBound = None
    weights: WeightBits = None


def node(args: NodeArguments) -> None:
    """Answer requests over HTTP (Open Inference Protocol v2), until Ctrl-C or SIGTERM."""
    from pliant.serve.node.power import read_energy, read_radio
    from pliant.serve.node.start_node import NodeOptions, serve  # needs the extra; the help does not
    from pliant.serve.upstream.callback import parse_callbacks

    objective = parse_objective(args.objective)
    if objective.per_joule and args.power is None:
        raise NodeError("joules can only count where it is said what computing draws: add --power.")
    worker_power = _watts_by_name(args.worker_power or ())
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
        token_files=TokenFiles(args.token_file, args.peer_token_file, args.operator_token_file),
        tls=Tls(args.tls_cert, args.tls_key, args.ca, args.client_ca),
        is_insecure=args.insecure,
        rates=parse_rates(args.client_rate, args.client_bandwidth),
        upstreams=tuple(args.upstream or ()),
        is_announced=args.announce,
        discovers=args.discover,
        address=args.address,
        queue=args.queue,
        page_texts=args.page_texts,
        settle_s=parse_seconds(args.settle),
        terms=Terms(
            None if args.latency is None else parse_seconds(args.latency),
            args.accuracy_floor,
            args.best_effort or None,
        ),
        learn_s=LEARN_S,
        objective=objective,
        radio=None if args.radio is None else read_radio(args.radio),
    )

    def report(event: str, **more: object) -> None:
        if args.json:
            print_json({"event": event, **more})
        else:
            say(" ".join([event, *map(str, more.values())]))

    with _opened(args) as opened:
        options = replace(options, energy=read_energy(args.power, worker_power, opened.served[0]))

        def on_start(url: str, node: Any, stop: Callable[[], None]) -> None:
            _exempt_from_collection()
            names = ", ".join(one.name for one in opened.served)
            more = {} if node.grpc is None else {"grpc": str(node.grpc)}
            report("serves", model=names, url=url, name=node.name, **more)

        first, *beside = opened.served
        asyncio.run(serve(options, first, on_start, opened.cluster, beside, opened.memory))
    report("has left")


@dataclass(frozen=True, slots=True)
class _Opened:
    """What answers: sessions on this device, which share the budget `memory`, and a cluster's."""

    served: tuple[Session[Any], ...]
    cluster: Session[Any] | None = None
    memory: MemoryBudget | None = None


@contextmanager
def _opened(args: NodeArguments) -> Iterator[_Opened]:
    """The sessions of all models."""
    if len(args.model) == 1:
        with _opened_one(args) as opened:
            yield opened
        return
    _check_several(args)
    memory = None if args.memory is None else MemoryBudget(parse_bytes(args.memory))
    slower = Dilation(args.dilate)
    with ExitStack() as stack:
        served = tuple(
            stack.enter_context(open_endpoint(one, memory=memory, threads=args.threads, dilation=slower))
            for one in args.model
        )
        yield _Opened(served, None, memory)


def _check_several(args: NodeArguments) -> None:
    """Raise InputError for options of one model, where several were named."""
    names = (
        "cluster",
        "workers",
        "worker_power",
        "key",
        "preload",
        "depths",
        "weights",
        "announce",
        "discover",
    )
    given = [option_text(name, getattr(args, name)) for name in names if getattr(args, name)]
    if given:
        raise InputError(
            f"{len(args.model)} models have no common option {', '.join(given)}: leave it out, or start "
            "a node for each model. --memory bounds all of them together."
        )


@contextmanager
def _opened_one(args: NodeArguments) -> Iterator[_Opened]:
    """This device's session and the cluster's beside it; the latter alone for models that only it runs."""
    (source,) = args.model
    model = _checked(args, source)
    with ExitStack() as stack:
        local = None
        if not isinstance(model, EncoderModel) or args.cluster is None:
            local = open_endpoint(
                source,
                preload=args.preload,
                memory=args.memory,
                threads=args.threads,
                dilation=Dilation(args.dilate),
                depths=args.depths,
                weights=weights_of(args.weights),
            )
            stack.enter_context(local)
        shared = None
        if args.cluster is not None:
            from pliant.api.open_cluster import Cluster  # needs pyzmq

            cluster = stack.enter_context(
                Cluster(
                    args.cluster,
                    key=args.key,
                    threads=args.threads,
                    memory=args.memory,
                    dilation=Dilation(args.dilate),
                    on_event=say,
                )
            )
            shared = cluster.open(source)  # nobody waits for workers to learn that it cannot be read
            cluster.wait(1 if args.workers is None else args.workers, PATIENCE_S)
            shared.curve()  # measures the devices, before anybody asks
        if local is not None:
            yield _Opened((local,), shared)
        else:
            assert shared is not None
            yield _Opened((shared,))


def _checked(args: NodeArguments, source: str) -> Model:
    """The model. Raises InputError for options that it does not have where it answers."""
    model = resolve(source)
    if isinstance(model, EncoderModel) and args.cluster is not None:
        refuse_options(model, args, ("preload", "depths", "weights"), "leave it out with --cluster")
        return model
    if not isinstance(model, ElasticModel):
        refuse_options(model, args, ("preload", "depths"))
    if not isinstance(model, OnnxGraph):
        refuse_options(model, args, ("weights",), "it is for ONNX models")
    if args.cluster is None:
        refuse_options(model, args, ("workers", "worker_power", "key"), "it is for --cluster")
    return model


def _watts_by_name(texts: Sequence[str]) -> dict[str, str]:
    """Raises NodeError for what is no NAME=WATTS."""
    if wrong := [text for text in texts if not text.partition("=")[0] or "=" not in text]:
        raise NodeError(f"--worker-power {wrong[0]!r:.80} names no worker; give NAME=WATTS, such as hub=4.5.")
    return dict(text.rsplit("=", 1) for text in texts)


def _exempt_from_collection() -> None:
    """Have Python's collector skip what the process holds by now, nearly all of which it keeps to its end.

    A full collection stops the event loop while it visits every object. A flood of short connections asks
    for one every few seconds, and the modules and the model are most of what there is to visit. The second
    collection tells the collector how little is left: it runs once that has grown by a quarter.
    """
    gc.collect()
    gc.freeze()
    gc.collect()
