"""Devices joined by one switch; they and their processes end with the block."""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from types import TracebackType
from typing import IO, final

from pliant.system.linux.control_groups import Cgroup, used_bytes
from testbed.commands import BedError, attempt, run, tbf, why_not
from testbed.groups import (
    end_group,
    find_hierarchy,
    limit_group,
    make_group,
    processes,
    remove_group,
    signal_group,
)
from testbed.names import claim_switch, remove_namespace, remove_stale
from testbed.spec import DeviceSpec, check_bandwidth, check_delay, check_memory
from testbed.traffic import Counters, read_counters

_INTERFACE = "eth0"
_RELAY = Path(__file__).with_name("relay.py")
# Enter the groups given before "--", then exec the command in the shell's process.
_ENTER = 'while [ "$1" != -- ]; do echo 0 > "$1/cgroup.procs" || exit 126; shift; done; shift; exec "$@"'


@final
class Device:
    """One device of a network, with its namespace and memory group. Made by `Network`."""

    def __init__(self, spec: DeviceSpec, namespace: str, address: str, group: Cgroup) -> None:
        self.spec = spec
        self.namespace = namespace
        self.address = address
        self.group = group
        self._started: list[subprocess.Popen[bytes]] = []

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def counters(self) -> Counters:
        """The traffic of its interface so far."""
        return read_counters(self.namespace, _INTERFACE)

    @property
    def processes(self) -> tuple[int, ...]:
        """The ids of its processes."""
        return processes(self.group)

    def popen(
        self,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stdin: int | IO[bytes] | None = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start `command` on the device. It and its children are killed with the device at the latest."""
        inside = ["nsenter", f"--net=/run/netns/{self.namespace}", "--", *map(str, command)]
        started = subprocess.Popen(
            ["sh", "-c", _ENTER, "sh", str(self.group.path), "--", *inside],
            env=None if env is None else dict(env), cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        self._started.append(started)
        while started.pid not in self.processes and started.poll() is None:
            time.sleep(5e-4)  # until it is in the group, `freeze` and `kill` would miss it
        return started

    def set_memory(self, memory_bytes: int | None) -> None:
        """Change or remove the memory limit. Raises BedError if its processes use more."""
        check_memory(self.name, memory_bytes)
        try:
            limit_group(self.group, memory_bytes)
        except OSError as error:
            raise BedError(
                f"{self.name} cannot be limited to {memory_bytes} bytes: its processes hold "
                f"{used_bytes(self.group)}. End some of them first."
            ) from error

    def freeze(self) -> None:
        """Stop all its processes; its link stays up, and the kernel still answers for them."""
        signal_group(self.group, SIGSTOP)

    def thaw(self) -> None:
        """Continue frozen processes."""
        signal_group(self.group, SIGCONT)

    def kill(self) -> None:
        """Kill all its processes at once, as a power failure would; the device itself stays."""
        end_group(self.group)
        for started in self._started:
            started.wait()
        self._started.clear()


@final
class Network:
    """Devices made of `specs`, each with its own address, joined by one switch; a context manager.

    Raises ValueError for equal names, and BedError without a testbed (check `why_not` before). Leftovers of
    networks of killed processes are removed first.
    """

    def __init__(self, specs: Sequence[DeviceSpec]) -> None:
        names = [spec.name for spec in specs]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"a network needs devices of different names, not {names}.")
        self._specs = tuple(specs)
        self._devices: dict[str, Device] = {}
        self._ports: dict[str, str] = {}
        self._relay: subprocess.Popen[str] | None = None
        self._relayed = [spec.name for spec in specs if spec.delay_s is not None]
        self._ends = ExitStack()

    def __enter__(self) -> "Network":
        reason = why_not()
        if reason is not None:
            raise BedError(f"no testbed here: {reason}.")
        remove_stale()
        with ExitStack() as ends:
            self._switch = claim_switch()
            ends.callback(remove_namespace, self._switch)
            run("ip", "-n", self._switch, "link", "add", "name", "sw0", "type", "bridge")
            run("ip", "-n", self._switch, "link", "set", "sw0", "addrgenmode", "none", "up")
            self._start_relay(ends)
            for number, spec in enumerate(self._specs):
                self._devices[spec.name] = self._add(number, spec, ends)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Device]:
        return iter(self._devices.values())

    def __getitem__(self, name: str) -> Device:
        if name not in self._devices:
            raise KeyError(f"no device {name!r} in this network, only {sorted(self._devices)}")
        return self._devices[name]

    def close(self) -> None:
        """Kill all processes and remove all devices; safe to call twice."""
        self._ends.close()
        self._devices.clear()

    def set_bandwidth(self, name: str, bandwidth_Bps: float | None) -> None:
        """Shape the device's sends and receives to `bandwidth_Bps` each; None removes the limit."""
        check_bandwidth(name, bandwidth_Bps)
        for namespace, interface in ((self[name].namespace, _INTERFACE), (self._switch, self._ports[name])):
            _shape(namespace, interface, bandwidth_Bps)

    def set_delay(self, name: str, delay_s: float) -> None:
        """Delay every frame in and out. Raises BedError for a device that was made without a delay."""
        check_delay(name, delay_s)
        if self[name].spec.delay_s is None:
            raise BedError(f"{name} was made without a delay; give its DeviceSpec one, 0 for none at first.")
        assert self._relay is not None
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{self._relayed.index(name)} {delay_s}\n")
        self._relay.stdin.flush()

    def cut(self, name: str) -> None:
        """Disconnect the device's link without notifying either side."""
        run("ip", "-n", self._switch, "link", "set", self._port(name), "down")

    def restore(self, name: str) -> None:
        """Reconnect the device's link."""
        run("ip", "-n", self._switch, "link", "set", self._port(name), "up")

    def part(self, *names: str) -> None:
        """Block traffic between any two of `names`; all others still reach each of them."""
        self._isolate(names, "on")

    def unite(self, *names: str) -> None:
        """Undo `part`."""
        self._isolate(names, "off")

    def _isolate(self, names: Sequence[str], is_alone: str) -> None:
        for name in names:
            port = self._port(name)
            run("ip", "-n", self._switch, "link", "set", port, "type", "bridge_slave", "isolated", is_alone)

    def _port(self, name: str) -> str:
        return self._ports[self[name].name]

    def _add(self, number: int, spec: DeviceSpec, ends: ExitStack) -> Device:
        namespace = f"{self._switch}-{spec.name}"
        address = f"10.77.{number // 250}.{number % 250 + 1}"
        run("ip", "netns", "add", namespace)
        ends.callback(remove_namespace, namespace)
        self._ports[spec.name] = self._plug(number, spec, namespace)
        run("ip", "-n", namespace, "addr", "add", f"{address}/16", "dev", _INTERFACE)
        for interface in ("lo", _INTERFACE):
            run("ip", "-n", namespace, "link", "set", interface, "up")
        for place, interface in ((namespace, _INTERFACE), (self._switch, self._ports[spec.name])):
            _shape(place, interface, spec.bandwidth_Bps)
        hierarchy = find_hierarchy()
        assert hierarchy is not None  # checked by why_not
        group = make_group(hierarchy, namespace)
        ends.callback(remove_group, group)
        device = Device(spec, namespace, address, group)
        ends.callback(device.kill)
        device.set_memory(spec.memory_bytes)
        return device

    def _plug(self, number: int, spec: DeviceSpec, namespace: str) -> str:
        """Join the device's interface to the switch, directly or through the relay; returns the name of its
        port.
        """
        inside = ("ip", "-n", self._switch)
        if spec.delay_s is None:
            near, port = f"wire{number}", f"port{number}"
            run(*inside, "link", "add", port, "type", "veth", "peer", "name", near)
        else:
            relayed = self._relayed.index(spec.name)
            near, port = f"near{relayed}", f"far{relayed}"
        run(*inside, "link", "set", near, "addrgenmode", "none", "netns", namespace, "name", _INTERFACE)
        run(*inside, "link", "set", port, "addrgenmode", "none", "master", "sw0", "up")
        return port

    def _start_relay(self, ends: ExitStack) -> None:
        delays_s = [str(spec.delay_s) for spec in self._specs if spec.delay_s is not None]
        if not delays_s:
            return
        command = ["nsenter", f"--net=/run/netns/{self._switch}", "--", sys.executable, "-I", str(_RELAY)]
        relay = subprocess.Popen(
            [*command, *delays_s], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        ends.callback(_end, relay)
        assert relay.stdout is not None
        if relay.stdout.readline() != "ready\n":
            raise BedError("the relay that delays frames did not start; is there a /dev/net/tun?")
        self._relay = relay


def _shape(namespace: str, interface: str, bandwidth_Bps: float | None) -> None:
    if bandwidth_Bps is None:
        attempt("tc", "-n", namespace, "qdisc", "del", "dev", interface, "root")
    else:
        run("tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", *tbf(bandwidth_Bps))


def _end(relay: "subprocess.Popen[str]") -> None:
    assert relay.stdin is not None
    assert relay.stdout is not None
    relay.stdin.close()
    relay.stdout.close()
    relay.wait()
