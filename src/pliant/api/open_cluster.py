"""Several devices as one, from Python: open a cluster, see who is there, open models on it."""

import os
import secrets
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import final

from pliant.api.member_options import cluster_key, data_ports, memory_source
from pliant.api.model_accuracy import accuracy_of
from pliant.api.open_encoder import encoder_of
from pliant.api.resolve import resolve
from pliant.cluster.control.inquire import inquire
from pliant.cluster.control.patience import Patience
from pliant.cluster.lead.choose_partition import AnyMode, Shares, chooser
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.open_member import Leader, MemberOptions, open_primary
from pliant.cluster.lead.overview import ClusterStatus
from pliant.cluster.lead.overview import MemberStatus as MemberStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import PORT as PORT
from pliant.cluster.net.connect_members import Engine
from pliant.cluster.net.key import Key
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.cluster.session.shared_primary import SharedPrimary
from pliant.errors import ClusterError, MulticastError
from pliant.ir.bitwidths import Weights
from pliant.ir.dilation import Dilation, compute_alone
from pliant.quantities import parse_seconds
from pliant.settings import cache_folder, thread_count


@final
class Cluster:
    """This process as the primary of a cluster; a context manager. `open` gives the session of a model.

    Workers join at `listen` with `pliant worker --join` and must hold the same `key` (a file, or the
    default one of `pliant cluster key`). Names are unique in a cluster; without `name` it is "primary-" and
    six digits drawn at random, so that two primaries on one machine differ. `memory` bounds what a model may
    take here, `mode` fixes Hepti's mode, `shares` are the best, equal or CoEdge's, `exchange` is how
    activations travel. With `weights` of 1 to 6 bits the matrices of a store stay in its codes, decoded in
    flight; with "auto" where float32 does not fit into the devices' memory, in the most bits that do. With
    `engine` gloo, which workers must be given too, activations travel through torch.distributed, unencrypted;
    with zmq they come in at `data_port`, or the first free one of a range such as `29501-29510`. With
    `announce`, workers may find it by multicast DNS. Devices and links are measured before their first plan
    unless `measure` is off, which it is for equal shares. Threads may share it: runs and plans take turns. It
    belongs to its process, and raises ClusterError in a forked child. Raises ClusterError: see errors.py for
    which.
    """

    def __init__(
        self,
        listen: str = f"127.0.0.1:{PORT}",
        *,
        key: Key | str | os.PathLike[str] | None = None,
        name: str | None = None,
        threads: int | None = None,
        memory: str | int | None = None,
        mode: AnyMode = "auto",
        shares: Shares = "best",
        exchange: Coding = "fp32",
        weights: Weights = "fp32",
        engine: Engine = "zmq",
        data_port: str | int | None = None,
        announce: bool = False,
        adapt: bool = True,
        measure: bool | None = None,
        dilation: Dilation | Callable[[], Dilation] = Dilation(),  # noqa: B008 - frozen
        patience: Patience = Patience(),  # noqa: B008 - frozen
        cache: Path | None = None,
        on_event: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._cache, self._on_event = cache_folder(cache), on_event
        self.name = primary_name() if name is None else name
        options = MemberOptions(
            name=self.name,
            key=cluster_key(key),
            version=version("pliant"),
            cache=self._cache,
            n_threads=thread_count(threads),
            free_bytes=memory_source(memory),
            dilation=dilation if callable(dilation) else compute_alone(dilation, "a member of a cluster"),
            engine=engine,
            data_ports=data_ports(data_port),
            patience=patience,
            on_event=on_event,
        )
        margins = Margins()
        leading = open_primary(
            options,
            listen,
            chooser(mode, shares, lambda: margins.least_gain, weights),
            coding=exchange,
            is_adaptive=adapt,
            is_measuring=shares != "equal" if measure is None else measure,
        )
        self._primary = SharedPrimary(leading, self.name, exchange, margins)
        self._sessions: dict[str, ClusterSession] = {}
        self._opening = Lock()
        self.address = listen if self.leader.messenger.address is None else self.leader.messenger.address
        if announce:
            self._announce(options)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye to the workers and let go of everything, after the run under way; safe to call twice.

        Its sessions are closed with it, and any other call raises InputError afterwards. A forked child lets
        go of nothing: connections and threads are its parent's.
        """
        for session in self._sessions.values():
            session.close()
        self._primary.close()

    @property
    def leader(self) -> Leader:
        """What leads the runs, for tests that act inside of one."""
        return self._primary.leader

    def _announce(self, options: MemberOptions) -> None:
        try:
            from pliant.cluster.control.discover import announced

            self._primary.enter(announced(options.name, self.address, options.key))
        except (ClusterError, MulticastError):
            self.close()
            raise

    def wait(self, n_workers: int, timeout: str | float = 30.0) -> None:
        """Return once so many workers can be used. Raises ClusterError naming who came."""
        self._primary.check_open()
        if n_workers:
            noun = "worker" if n_workers == 1 else "workers"
            self._on_event(f"waiting for {n_workers} {noun} at {self.address.removeprefix('tcp://')}")
        self.leader.primary.wait_for(n_workers, parse_seconds(timeout))

    def status(self) -> tuple[MemberStatus, ...]:
        """Every worker that ever joined, by name."""
        self._primary.check_open()
        return self.leader.primary.status().members

    @property
    def problems(self) -> tuple[str, ...]:
        """Who was turned away before it could be listed, and why: for people."""
        return self.leader.messenger.problems

    def open(self, model: str | os.PathLike[str]) -> ClusterSession:
        """The session of the model that `model` names, over whoever can be used: the same one until it is
        closed. Nothing is loaded before it is asked. Raises ModelError where the model cannot be read.
        """
        self._primary.check_open()
        source = os.fspath(model)
        with self._opening:
            session = self._sessions.get(source)
            if session is None or session.is_closed:
                named = resolve(source)
                encoder = encoder_of(named, self._cache)
                accuracy = accuracy_of(named)
                session = ClusterSession(named.name, named.identity, encoder, self._primary, accuracy)
                self._sessions[source] = session
            return session


def cluster_status(
    address: str = f"127.0.0.1:{PORT}",
    *,
    key: Key | str | os.PathLike[str] | None = None,
    timeout: str | float = 5.0,
) -> ClusterStatus:
    """The state of the primary that runs at `address`, HOST:PORT, and holds `key`; runs go on undisturbed.

    Raises ClusterError where none answers within `timeout`.
    """
    return inquire(address, cluster_key(key), parse_seconds(timeout))


def primary_name() -> str:
    """A name that no other primary has: two on one machine would be taken for one by their workers."""
    return f"primary-{secrets.token_hex(3)}"
