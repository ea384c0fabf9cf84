"""Connect the members of a plan to each other, by engine."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, final

import psutil

from pliant.errors import ClusterError

if TYPE_CHECKING:  # keep engines' dependencies out of `--help`
    from pliant.cluster.net.comm_gloo import GlooComm
    from pliant.cluster.net.comm_zmq import ZmqComm

PORT = 29500
"""Default port that workers connect to."""
Transport = Literal["zmq", "gloo"]
"""The transport of activations."""
GROUP_TIMEOUT_S = 60.0


class MemberConnector(Protocol):
    """Sets up a member's data connections."""

    @property
    def address(self) -> str:
        """The address of this member's data connection; it changes when a member restarts."""

    def address_for(self, other: str) -> str:
        """The address at which the member whose own is `other` reaches this one."""

    def rendezvous(self, members: Sequence[str]) -> str:
        """On the primary: where `members`, itself first, meet; empty if no meeting is needed."""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        rendezvous: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Connect to `members`. Raises ClusterError if that fails.

        Returns early with an error after `is_wanted` returns False.
        """


@final
class NullConnector:
    """Members that are connected from the start, as in one process."""

    address = ""

    def address_for(self, other: str) -> str:
        return ""

    def rendezvous(self, members: Sequence[str]) -> str:
        return ""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        rendezvous: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        return None


@final
class AddressConnector:
    """ZeroMQ: each member connects to the given addresses of the others."""

    def __init__(self, comm: "ZmqComm") -> None:
        self._comm = comm

    @property
    def address(self) -> str:
        return self._comm.address

    def address_for(self, other: str) -> str:
        return self._comm.address_for(other)

    def rendezvous(self, members: Sequence[str]) -> str:
        return ""

    def join(
        self,
        members: Sequence[str],
        addresses: Mapping[str, str],
        rendezvous: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        for peer, address in addresses.items():
            if peer != self._comm.name:
                self._comm.connect(peer, address)


@final
class GroupConnector:
    """torch.distributed: a formed group carries all plans of its members until one of them is lost.

    A plan with another member, or after a loss, needs a new group: a new process on every member, which
    imports torch before it joins (one to several seconds). `host` is this member's address.
    """

    def __init__(self, comm: "GlooComm", host: str) -> None:
        self._comm, self._host = comm, host.strip("[]")

    @property
    def address(self) -> str:
        """Identifies this process among successive ones on the same device; no socket listens there."""
        return f"{self._host}/{os.getpid()}"

    def address_for(self, other: str) -> str:
        return self.address

    def rendezvous(self, members: Sequence[str]) -> str:
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
        rendezvous: str,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        if rendezvous:
            self._comm.form(members, rendezvous, GROUP_TIMEOUT_S, is_wanted)


def find_interface(host: str) -> str:
    """Return the name of the interface with the address `host`. Raises ClusterError if there is none."""
    found = psutil.net_if_addrs()
    for name, addresses in found.items():
        if any(address.address == host.strip("[]") for address in addresses):
            return str(name)
    raise ClusterError(f"no interface of this device has the address {host}; there are {', '.join(found)}.")
