"""Processes on a device: their memory, freezing and ending."""

import sys
import time
from pathlib import Path
from subprocess import PIPE

import pytest

from testbed import BedError, DeviceSpec
from tests.testbed.conftest import MakeNetwork, said_by

_TELL = """
from pliant.profile.system_memory import free_memory_bytes, memory_bytes
print(memory_bytes(), free_memory_bytes())
"""
# Holds some bytes for good.
_HOLD = """
import sys, time
held = b"x" * int(sys.argv[1])
print("up", flush=True)
time.sleep(600)
"""


def test_a_process_sees_its_devices_memory(network: MakeNetwork) -> None:
    """s_i of Hepti's Table 1a, read from inside; the limit may change while the device runs."""
    device = network(DeviceSpec("desk", memory_bytes=300_000_000))["desk"]
    whole, free = map(int, said_by(device, _TELL).split())
    assert 300_000_000 - 4096 <= whole <= 300_000_000
    assert 100_000_000 < free < whole
    device.set_memory(200_000_000)
    assert int(said_by(device, _TELL).split()[0]) <= 200_000_000
    device.set_memory(None)
    assert int(said_by(device, _TELL).split()[0]) > 300_000_000


def test_what_others_on_the_device_hold_is_not_free(network: MakeNetwork) -> None:
    """Memory falls as other programs start: Hepti switches modes by it."""
    device = network(DeviceSpec("desk", memory_bytes=400_000_000))["desk"]
    before = int(said_by(device, _TELL).split()[1])
    holder = device.popen([sys.executable, "-c", _HOLD, "150000000"], stdout=PIPE)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == b"up\n"
    assert before - int(said_by(device, _TELL).split()[1]) >= 150_000_000


def test_a_process_that_takes_more_than_there_is_ends(network: MakeNetwork) -> None:
    """The limit is enforced, not only told; and it cannot be set below what is held."""
    device = network(DeviceSpec("desk", memory_bytes=100_000_000))["desk"]
    greedy = device.popen([sys.executable, "-c", _HOLD, "300000000"], stdout=PIPE)
    assert greedy.stdout is not None
    with greedy.stdout:
        assert greedy.stdout.read() == b""
    assert greedy.wait(timeout=30) != 0
    if device.group.version == 1:
        holder = device.popen([sys.executable, "-c", _HOLD, "50000000"], stdout=PIPE)
        assert holder.stdout is not None
        with holder.stdout:
            assert holder.stdout.readline() == b"up\n"
        with pytest.raises(BedError, match="processes hold"):
            device.set_memory(20_000_000)


def test_a_frozen_device_goes_on_where_it_was(network: MakeNetwork) -> None:
    """A fault that no connection shows: the process is there and silent."""
    device = network(DeviceSpec("desk"))["desk"]
    process = device.popen(
        [sys.executable, "-c", "for l in open(0): print(l, end='', flush=True)"], stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"one\n"
        device.freeze()
        assert _state(process.pid) == "T"
        device.thaw()
        process.stdin.write(b"two\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"two\n"
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_killing_a_device_ends_all_it_started(network: MakeNetwork) -> None:
    """Children of a worker too; and the device may start another."""
    device = network(DeviceSpec("desk"))["desk"]
    process = device.popen(["sh", "-c", "sleep 600 & sleep 600 & echo up; wait"], stdout=PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
    assert len(device.processes) == 3
    device.freeze()  # also those that are stopped
    device.kill()
    assert process.returncode == -9
    assert device.processes == ()
    assert said_by(device, "print('again')") == "again"


def _state(process: int) -> str:
    """The state letter of a process once it is no longer running."""
    for _ in range(500):
        letter = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        if letter == "T":
            break
        time.sleep(0.01)
    return letter
