"""Devices on one machine: each has a namespace, a shaped link, a memory limit and a speed.

Needs Linux, root, iproute2 and util-linux; `why_not` returns which of them is missing.
"""

from testbed.commands import BedError, why_not
from testbed.network import Device, Network
from testbed.spec import DeviceSpec, rate
from testbed.traffic import Counters

__all__ = ["BedError", "Counters", "Device", "DeviceSpec", "Network", "rate", "why_not"]
