"""The traffic of an interface, as counted by the kernel."""

import json
from dataclasses import dataclass

from testbed.commands import run


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes and frames of one device's interface since it was made, Ethernet headers included."""

    sent_bytes: int
    received_bytes: int
    sent_frames: int
    received_frames: int

    def since(self, before: "Counters") -> "Counters":
        """The traffic after `before`."""
        return Counters(
            self.sent_bytes - before.sent_bytes,
            self.received_bytes - before.received_bytes,
            self.sent_frames - before.sent_frames,
            self.received_frames - before.received_frames,
        )


def read_counters(namespace: str, interface: str) -> Counters:
    """The counters of `interface` now."""
    (link,) = json.loads(run("ip", "-n", namespace, "-j", "-s", "link", "show", "dev", interface))
    sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
    return Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])
