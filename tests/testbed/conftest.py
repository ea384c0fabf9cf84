"""Networks for tests, where this machine can have them."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import PIPE

import pytest

from testbed import Device, DeviceSpec, Network, why_not

MakeNetwork = Callable[..., Network]


@pytest.fixture
def network() -> Iterator[MakeNetwork]:
    """`network(spec, ...)` is open until the test ends; skips where no testbed can be built."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    with ExitStack() as ends:
        yield lambda *specs: ends.enter_context(Network(specs))


def pair(**of_the_first: float) -> tuple[DeviceSpec, DeviceSpec]:
    """Two devices, the first of them limited."""
    return DeviceSpec("desk", **of_the_first), DeviceSpec("wall")  # type: ignore[arg-type]


def said_by(device: Device, script: str, *arguments: object) -> str:
    """What a Python script prints when it is run on the device."""
    process = device.popen([sys.executable, "-c", script, *map(str, arguments)], stdout=PIPE, stderr=PIPE)
    out, error = process.communicate(timeout=60)
    assert process.returncode == 0, error.decode()
    return out.decode().strip()
