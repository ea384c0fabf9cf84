"""The Python interface of clusters: open a cluster, list its members, open models on it."""

import atexit
import os
import secrets
import weakref
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import final

from pliant.api.member_options import cluster_key, data_ports, memory_source
from pliant.api.model_accuracy import accuracy_of
from pliant.api.open_encoder import encoder_of
from pliant.api.resolve import resolve
from pliant.cluster.control.query_status import query_status
from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.choose_partition import ModeOption, ShareRule, make_chooser
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.open_member import MemberOptions, PrimaryMember, open_primary
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.cluster.lead.status_report import MemberStatus as MemberStatus
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.net.connect_members import PORT as PORT
from pliant.cluster.net.connect_members import Transport
from pliant.cluster.net.key import Key
from pliant.cluster.session.cluster_session import ClusterSession
from pliant.cluster.session.shared_primary import SharedPrimary
from pliant.errors import ClusterError, MulticastError
from pliant.ir.bitwidths import WeightFormat
from pliant.ir.dilation import Dilation, require_compute_only
from pliant.quantities import parse_seconds
from pliant.settings import cache_folder, thread_count


@final
class Cluster:
    """The primary of a cluster, in this process; a context manager. `open` returns the session of a model.

    Workers join at `listen` with `pliant worker --join` and must have the same `key` (a file, or the
    default one of `pliant cluster key`). Names are unique in a cluster; the default `name` is "primary-" and
    six random digits, so that two primaries on one machine differ. `memory` limits weights and activations
    here, `mode` fixes Hepti's mode, `shares` are the best, equal or CoEdge's, `exchange` is the type in which
    activations are sent. With `weights` of 1 to 6 bits the matrices of a store stay in its codes and
    are decoded during the product; with "auto", if float32 does not fit into the devices' memory, in the most
    bits that fit. With `engine` gloo, which workers must use too, activations are sent unencrypted through
    torch.distributed; with zmq they arrive at `data_port`, or at the first free port of a range such as
    `29501-29510`. With `announce`, workers find it by multicast DNS. Devices and links are measured before
    their first plan unless `measure` is False, the default for equal shares. Threads may share it: runs and
    plans take turns. It cannot be used in a forked child. Raises ClusterError; errors.py lists its kinds.
    """

    def __init__(
        self,
        listen: str = f"127.0.0.1:{PORT}",
        *,
        key: Key | str | os.PathLike[str] | None = None,
        name: str | None = None,
        threads: int | None = None,
        memory: str | int | None = None,
        mode: ModeOption = "auto",
        shares: ShareRule = "best",
        exchange: Coding = "fp32",
        weights: WeightFormat = "fp32",
        engine: Transport = "zmq",
        data_port: str | int | None = None,
        announce: bool = False,
        adapt: bool = True,
        measure: bool | None = None,
        dilation: Dilation | Callable[[], Dilation] = Dilation(),  # noqa: B008 - frozen
        patience: ClusterTimeouts = ClusterTimeouts(),  # noqa: B008 - frozen
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
            dilation=dilation
            if callable(dilation)
            else require_compute_only(dilation, "a member of a cluster"),
            engine=engine,
            data_ports=data_ports(data_port),
            patience=patience,
            on_event=on_event,
        )
        margins = Margins()
        leading = open_primary(
            options,
            listen,
            make_chooser(mode, shares, lambda: margins.least_gain, weights),
            coding=exchange,
            is_adaptive=adapt,
            is_measuring=shares != "equal" if measure is None else measure,
        )
        self._primary = SharedPrimary(leading, self.name, exchange, margins)
        self._sessions: dict[str, ClusterSession] = {}
        self._opening = Lock()
        self.address = listen if self.leader.messenger.address is None else self.leader.messenger.address
        # An open connection would block the end of the process: its thread has stopped by then.
        self._at_exit = partial(_close, weakref.ref(self))
        atexit.register(self._at_exit)
        if announce:
            self._announce(options)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect from the workers and free all resources after the current run; idempotent.

        Closes its sessions. Any other call raises InputError afterwards. In a forked child it frees nothing,
        because connections and threads belong to the parent.
        """
        atexit.unregister(self._at_exit)
        try:
            for session in list(self._sessions.values()):  # another thread may be opening one
                session.close()
        finally:
            self._primary.close()

    @property
    def leader(self) -> PrimaryMember:
        """The object that leads the runs, for tests that interfere with a run."""
        return self._primary.leader

    def _announce(self, options: MemberOptions) -> None:
        try:
            from pliant.cluster.control.discover_primaries import announce_primary

            self._primary.enter(announce_primary(options.name, self.address, options.key))
        except (ClusterError, MulticastError):
            self.close()
            raise

    def wait(self, n_workers: int, timeout: str | float = 30.0) -> None:
        """Wait until `n_workers` workers are usable. Raises ClusterError naming those that joined."""
        self._primary.check_open()
        if n_workers:
            noun = "worker" if n_workers == 1 else "workers"
            self._on_event(f"waiting for {n_workers} {noun} at {self.address.removeprefix('tcp://')}")
        self.leader.primary.wait_for(n_workers, parse_seconds(timeout))

    def status(self) -> tuple[MemberStatus, ...]:
        """Return the status of every worker that ever joined, by name."""
        self._primary.check_open()
        return self.leader.primary.status().members

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about members that were refused before they could be listed."""
        return self.leader.messenger.problems

    def open(self, model: str | os.PathLike[str]) -> ClusterSession:
        """Return the session of the model that `model` names, over the usable workers.

        It is the same session until that is closed. Weights are loaded at the first call. Raises ModelError
        if the model cannot be read.
        """
        source = os.fspath(model)
        with self._opening:
            self._primary.check_open()
            session = self._sessions.get(source)
            if session is None or session.is_closed:
                named = resolve(source)
                encoder = encoder_of(named, self._cache)
                accuracy = accuracy_of(named)
                session = ClusterSession(named.name, named.identity, encoder, self._primary, accuracy)
                self._sessions[source] = session
            return session


def _close(cluster: "weakref.ref[Cluster]") -> None:
    if (found := cluster()) is not None:
        found.close()


def cluster_status(
    address: str = f"127.0.0.1:{PORT}",
    *,
    key: Key | str | os.PathLike[str] | None = None,
    timeout: str | float = 5.0,
) -> ClusterStatus:
    """Query the primary with `key` at `address`, HOST:PORT, without affecting its runs.

    Raises ClusterError if none answers within `timeout`.
    """
    return query_status(address, cluster_key(key), parse_seconds(timeout))


def primary_name() -> str:
    """Return a random name, because workers could not distinguish two primaries of one name."""
    return f"primary-{secrets.token_hex(3)}"
