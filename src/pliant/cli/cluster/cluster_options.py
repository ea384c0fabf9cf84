"""Options that the verbs of `pliant cluster` share, and how they become a cluster."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pliant.cli.cluster.process_metrics import MetricsAddress, primary_page
from pliant.cli.shared.verb_options import Threads, shipped
from pliant.cli.shared.weight_bits import weights_of
from pliant.cluster.lead.choose_partition import AnyMode, Shares
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import PORT, Engine
from pliant.ir.dilation import Dilation

if TYPE_CHECKING:  # it needs pyzmq, which a verb's help must not
    from pliant.api.open_cluster import Cluster
    from pliant.cluster.session.cluster_session import ClusterSession

KeyFile = Annotated[
    Path | None,
    typer.Option(help="The cluster's key.", show_default="pliant/cluster.key in your configuration folder"),
]
Memory = Annotated[
    str | None,
    typer.Option(
        help="Memory that models may take here, such as 1GB; @FILE reads it from a file whenever asked.",
        show_default="what is free",
    ),
]
ModelName = Annotated[
    str,
    typer.Argument(
        help="A model directory, a store, a model that ships with pliant, or random:CONFIG[:SEED].",
        autocompletion=shipped,
    ),
]
Tokens = Annotated[int, typer.Option(help="Rows that the model reads: tokens, patches or frames.", min=1)]
Deadline = Annotated[str | None, typer.Option(help="Deadline from input to answer, such as 200ms.")]
Slower = Annotated[
    float, typer.Option(help="Emulate a device that computes this many times slower.", min=1.0)
]

CodedBits = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="A store's matrices: fp32, codes of 1..6 bits, or auto: codes where fp32 does not fit.",
        show_default="fp32",
    ),
]
DataEngine = Annotated[
    Engine, typer.Option(help="What carries activations; gloo needs torch and is not encrypted.")
]
DataPort = Annotated[
    str | None,
    typer.Option(
        help="Where tensors come in: a port, or a range such as 29501-29510, whose first free one is taken.",
        show_default="any free port",
    ),
]


@dataclass(frozen=True, slots=True)
class PrimaryArguments:
    """The options that every verb shares which leads a cluster: how this device is its primary."""

    listen: Annotated[str, typer.Option(help="Where workers join: HOST:PORT of this device.")] = (
        f"127.0.0.1:{PORT}"
    )
    name: Annotated[
        str | None,
        typer.Option(help="What this device is called.", show_default="primary- and six random digits"),
    ] = None
    key: KeyFile = None
    wait: Annotated[int, typer.Option(help="Workers to wait for.", min=0)] = 1
    patience: Annotated[str, typer.Option(help="How long to wait for them.")] = "30s"
    mode: Annotated[AnyMode, typer.Option(help="How layers are split (Hepti 4.2).")] = "auto"
    partition: Annotated[Shares, typer.Option(help="The quickest shares, equal, or CoEdge's.")] = "best"
    exchange: Annotated[Coding, typer.Option(help="How activations travel.")] = "fp32"
    weights: CodedBits = None
    engine: DataEngine = "zmq"
    data_port: DataPort = None
    announce: Annotated[
        bool,
        typer.Option("--announce", help="Let `pliant worker --discover` find this device (multicast DNS)."),
    ] = False
    adapt: Annotated[bool, typer.Option(help="Change the plan inside a run when devices or links drift.")] = (
        True
    )
    memory: Memory = None
    threads: Threads = None
    dilate_compute: Slower = 1.0
    metrics: MetricsAddress = None

    @contextmanager
    def open(self, model: str) -> "Iterator[ClusterSession]":
        """The model's session, once workers joined the cluster; what happens to them is said on stderr.

        `model` is opened first: nobody waits for workers to learn that it cannot be read.
        """
        with ExitStack() as stack:
            cluster = stack.enter_context(self._cluster())
            if self.metrics is not None:
                stack.enter_context(primary_page(self.metrics, cluster, self.wait, say))
            session = cluster.open(model)
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
            weights=weights_of(self.weights),
            engine=self.engine,
            data_port=self.data_port,
            announce=self.announce,
            adapt=self.adapt,
            dilation=Dilation(self.dilate_compute),
            on_event=say,
        )


def say(text: str) -> None:
    """For people, beside what a verb prints."""
    typer.echo(f"pliant: {text}", err=True)
