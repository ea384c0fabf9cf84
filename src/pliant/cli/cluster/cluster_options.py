"""Options that the commands of `pliant cluster` share, and the cluster that they open."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.cluster.process_metrics import MetricsAddress, primary_page
from pliant.cli.shared.show import say
from pliant.cli.shared.verb_options import Threads, shipped
from pliant.cli.shared.weight_bits import parse_weights
from pliant.cluster.lead.choose_partition import ModeOption, ShareRule
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import PORT, Transport
from pliant.ir.dilation import Dilation

if TYPE_CHECKING:  # it needs pyzmq, which the help must not need
    from pliant.api.open_cluster import Cluster
    from pliant.cluster.session.cluster_session import ClusterSession

KeyFile = Annotated[
    Path | None,
    typer.Option(
        help="File of the cluster's key.",
        show_default="pliant/cluster.key in the user's configuration folder",
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        help="Memory for models on this device, such as 1GB; @FILE reads it from a file each time it "
        "is needed.",
        show_default="all free memory",
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(
        help="A model directory, a store, a model that ships with pliant, or random:CONFIG[:SEED].",
        autocompletion=shipped,
    ),
]
TokensOption = Annotated[int, typer.Option(help="Number of input rows: tokens, patches or frames.", min=1)]
Deadline = Annotated[str | None, typer.Option(help="Deadline from input to answer, such as 200ms.")]
Slower = Annotated[
    float, typer.Option(help="Emulate a device that computes this many times slower.", min=1.0)
]

CodedBits = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Form of a store's matrices: fp32, codes of 1..6 bits, or auto: codes if fp32 does not fit.",
        show_default="fp32",
    ),
]
DataEngine = Annotated[
    Transport, typer.Option(help="Transport of activations; gloo needs torch and is not encrypted.")
]
DataPort = Annotated[
    str | None,
    typer.Option(
        help="Port for incoming tensors, or a range such as 29501-29510, of which the first free port "
        "is used.",
        show_default="any free port",
    ),
]


@dataclass(frozen=True, slots=True)
class PrimaryArguments:
    """The options of every command that leads a cluster: how this device is its primary."""

    listen: Annotated[str, typer.Option(help="Address of this device at which workers join: HOST:PORT.")] = (
        f"127.0.0.1:{PORT}"
    )
    name: Annotated[
        str | None,
        typer.Option(help="Name of this device.", show_default="primary- and six random digits"),
    ] = None
    key: KeyFile = None
    wait: Annotated[int, typer.Option(help="Number of workers to wait for.", min=0)] = 1
    patience: Annotated[str, typer.Option(help="How long to wait for the workers.")] = "30s"
    mode: Annotated[ModeOption, typer.Option(help="How layers are split (Hepti 4.2).")] = "auto"
    partition: Annotated[
        ShareRule, typer.Option(help="Shares of the devices: the quickest, equal, or CoEdge's.")
    ] = "best"
    exchange: Annotated[Coding, typer.Option(help="Type in which activations are sent.")] = "fp32"
    weights: CodedBits = None
    engine: DataEngine = "zmq"
    data_port: DataPort = None
    announce: Annotated[
        bool,
        typer.Option(
            "--announce", help="Announce this device to `pliant worker --discover` (multicast DNS)."
        ),
    ] = False
    adapt: Annotated[
        bool, typer.Option(help="Change the plan during a run when devices or links change.")
    ] = True
    memory: MemoryOption = None
    threads: Threads = None
    dilate_compute: Slower = 1.0
    metrics: MetricsAddress = None

    @contextmanager
    def open(
        self, model: str, check: "Callable[[ClusterSession], None]" = lambda session: None
    ) -> "Iterator[ClusterSession]":
        """Open the model's session after the workers joined; events of workers are printed on stderr.

        `model` is opened and `check` called first, so that an unreadable model or a wrong input is an error
        before the wait for workers.
        """
        with ExitStack() as stack:
            cluster = stack.enter_context(self._cluster())
            if self.metrics is not None:
                stack.enter_context(primary_page(self.metrics, cluster, self.wait, say))
            session = cluster.open(model)
            check(session)
            cluster.wait(self.wait, self.patience)
            yield session

    def _cluster(self) -> "Cluster":
        from pliant.api.open_cluster import Cluster

        return Cluster(
            self.listen,
            key=self.key,
            name=self.name,
            threads=self.threads,
            memory=self.memory,
            mode=self.mode,
            shares=self.partition,
            exchange=self.exchange,
            weights=parse_weights(self.weights),
            engine=self.engine,
            data_port=self.data_port,
            announce=self.announce,
            adapt=self.adapt,
            dilation=Dilation(self.dilate_compute),
            on_event=say,
        )
