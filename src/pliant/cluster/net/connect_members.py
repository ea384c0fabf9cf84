"""Connect the members of a plan to each other, by engine."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, final

import psutil

from pliant.errors import ClusterError

if TYPE_CHECKING:  # a verb's help must not need what an engine needs
    from pliant.cluster.net.comm_gloo import GlooComm
    from pliant.cluster.net.comm_zmq import ZmqComm

PORT = 29500
"""Where workers join, unless told otherwise."""
Engine = Literal["zmq", "gloo"]
"""What carries activations."""
FORM_S = 60.0


class Meet(Protocol):
    """A member's data connections, before they carry anything."""

    @property
    def address(self) -> str:
        """Where others reach this member's data; another one when a member has started anew."""

    def place(self, members: Sequence[str]) -> str:
        """The primary's: where `members`, itself first, are to meet; empty where they need not."""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        place: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Be ready to exchange with `members`. Raises ClusterError where that fails.

        Gives up soon after `is_wanted` says no.
        """


@final
class NoMeeting:
    """Members that reach each other from the start, as in one process."""

    address = ""

    def place(self, members: Sequence[str]) -> str:
        return ""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        place: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        return None


@final
class ByAddress:
    """ZeroMQ: each connects to where it is told that the others listen."""

    def __init__(self, comm: "ZmqComm") -> None:
        self._comm = comm

    @property
    def address(self) -> str:
        return self._comm.address

    def place(self, members: Sequence[str]) -> str:
        return ""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        place: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        for peer, address in addresses.items():
            if peer != self._comm.name:
                self._comm.connect(peer, address)


@final
class InGroups:
    """torch.distributed: a group that has formed carries all plans of its members, until one is lost.

    A plan with another member, or after a loss, needs a new group: a new process on every member, which
    imports torch before it meets the others, a second or several. `host` is this member's address.
    """

    def __init__(self, comm: "GlooComm", host: str) -> None:
        self._comm, self._host = comm, host.strip("[]")

    @property
    def address(self) -> str:
        """Tells this process from one before it on the same device; nothing listens there."""
        return f"{self._host}/{os.getpid()}"

    def place(self, members: Sequence[str]) -> str:
        if len(members) < 2 or self._comm.reaches(members):
            return ""
        is_6 = ":" in self._host
        with socket.socket(socket.AF_INET6 if is_6 else socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind((self._host, 0))
            port: int = probe.getsockname()[1]
        return f"tcp://[{self._host}]:{port}" if is_6 else f"tcp://{self._host}:{port}"

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        place: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        if place:
            self._comm.form(members, place, FORM_S, is_wanted)


def interface_of(host: str) -> str:
    """The name of the interface that has the address `host`. Raises ClusterError where none has."""
    found = psutil.net_if_addrs()
    for name, addresses in found.items():
        if any(address.address == host.strip("[]") for address in addresses):
            return str(name)
    raise ClusterError(f"no interface of this device has the address {host}; there are {', '.join(found)}.")
