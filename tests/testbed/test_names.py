"""Nothing is left behind: by blocks that end, by errors, and by processes that were killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import BedError, DeviceSpec, Network
from testbed.commands import namespaces
from testbed.groups import find_hierarchy, named_groups
from testbed.names import claim_switch, remove_namespace, remove_stale
from tests.testbed.conftest import MakeNetwork, pair

# Makes a device that runs something, tells all its names, and is killed.
_MAKER = """
import os, signal
from testbed import BedError, DeviceSpec, Network
with Network([DeviceSpec("desk", delay_s=0.001)]) as net:
    sleeper = net["desk"].popen(["sleep", "600"], stdout=-3, stderr=-3)
    while len(net["desk"].processes) != 1:
        pass
    print(net["desk"].namespace, sleeper.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _left(name: str) -> list[str]:
    hierarchy = find_hierarchy()
    assert hierarchy is not None
    found = [n for n in namespaces() if n.startswith(name)]
    return found + [str(group.path) for group in named_groups(hierarchy, name)]


def test_a_network_leaves_nothing(network: MakeNetwork) -> None:
    """Neither namespaces nor groups nor processes, whatever was running."""
    net = network(DeviceSpec("desk", delay_s=0.001, bandwidth_Bps=1e6), DeviceSpec("wall"))
    name = net["desk"].namespace.removesuffix("-desk")
    process = net["desk"].popen(["sleep", "600"])
    assert len(_left(name)) == 5  # the switch, two devices' namespaces and their groups
    net.close()
    assert _left(name) == []
    assert process.returncode is not None
    net.close()


def test_an_error_inside_leaves_nothing(network: MakeNetwork) -> None:
    """The end of a `with` block removes all, however it is reached."""
    network(DeviceSpec("probe"))  # skips where there is no testbed
    names = []

    def fail() -> None:
        with Network(pair()) as net:
            names.append(net["desk"].namespace.removesuffix("-desk"))
            net.set_delay("desk", 0.1)

    with pytest.raises(BedError, match="without a delay"):
        fail()
    assert _left(names[0]) == []


def test_what_a_killed_process_left_is_removed_at_the_next_start(network: MakeNetwork) -> None:
    """A bench that was killed must not eat the machine's memory and processors for good."""
    here = network(DeviceSpec("mine"))
    root = Path(__file__).parents[2]
    made = subprocess.run(
        [sys.executable, "-c", _MAKER], capture_output=True, text=True, cwd=root, check=False
    )
    assert made.returncode == -9, made.stderr
    namespace, sleeper = made.stdout.split()
    name = namespace.removesuffix("-desk")
    remove_stale()
    assert _left(name) == []
    assert not Path(f"/proc/{sleeper}").exists() or "Z" in Path(f"/proc/{sleeper}/stat").read_text().split()
    assert here["mine"].namespace in namespaces(), "what a living process made stays"


def test_a_process_may_have_several_networks(network: MakeNetwork) -> None:
    """Each has names of its own."""
    network(DeviceSpec("desk"))
    one, other = claim_switch(), claim_switch()
    assert one != other
    for name in (one, other):
        remove_namespace(name)
