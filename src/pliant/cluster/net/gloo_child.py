"""The child process that runs torch.distributed: one member's rank.

Run as a script by `comm_gloo`. Every message is sent as two: a head of fixed length that holds the
payload's length, then the payload, posted at exactly that length, so Gloo never sees a length mismatch.
Heads use Gloo. Payloads use Gloo too, unless every rank has its own GPU: then NCCL, with one group per
direction, so that a pending receive does not block a send. Only Gloo is tested: the development machine had
no GPU.
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Any

from pliant.cluster.net.shared_blocks import SharedRegion

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own, about features that are unused here
    import torch
    import torch.distributed as dist

HEAD_BYTES = 1088
LENGTH_BYTES = 8
LINGER_S = 1.0

_NEVER = timedelta(days=365)  # timeouts are handled by the supervising process


class Rank:
    """One rank: one sending and one receiving thread per peer."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._rank: int = options["rank"]
        self._pipe = Connection(options["pipe"])
        self._out = SharedRegion(options["out"], options["region_bytes"])
        self._in = SharedRegion(options["in"], options["region_bytes"])
        self._limit_bytes: int = options["max_message_bytes"]
        self._lock = Lock()
        peers = [r for r in range(options["n_ranks"]) if r != self._rank]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist.init_process_group(
                "gloo",
                init_method=options["rendezvous"],
                rank=self._rank,
                world_size=options["n_ranks"],
                timeout=_NEVER,
            )
            self._device, self._groups = _payload_groups()
        self._queues: dict[int, SimpleQueue[tuple[bytes, int, int] | None]] = {
            r: SimpleQueue() for r in peers
        }
        self._senders = [Thread(target=self._send_all, args=(r,), daemon=True) for r in peers]
        for thread in (
            *self._senders,
            *(Thread(target=self._receive_all, args=(r,), daemon=True) for r in peers),
        ):
            thread.start()
        self._tell("ready", self._rank)

    def run(self) -> None:
        """Process commands until "end" or the parent's exit; then send what is queued, within LINGER_S."""
        while True:
            try:
                what, *more = self._pipe.recv()
            except (EOFError, OSError):
                break
            if what == "end":
                break
            if what == "free":
                self._in.free(*more)
            else:
                dst, head, offset, n_bytes = more
                self._queues[dst].put((head, offset, n_bytes))
        until_s = monotonic() + LINGER_S
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._senders:
            thread.join(max(0.0, until_s - monotonic()))

    def _tell(self, *what: object) -> None:
        with self._lock:
            try:
                self._pipe.send(what)
            except OSError:  # the parent has ended; `run` detects it
                return

    def _send_all(self, dst: int) -> None:
        is_lost = False
        while (item := self._queues[dst].get()) is not None:
            head, offset, n_bytes = item
            try:
                if is_lost:
                    continue
                dist.send(torch.frombuffer(bytearray(head), dtype=torch.uint8), dst)
                if n_bytes:
                    payload = torch.frombuffer(
                        self._out.memory, dtype=torch.uint8, count=n_bytes, offset=offset
                    )
                    dist.send(payload.to(self._device), dst, group=self._groups[self._rank < dst])
            except RuntimeError as error:
                is_lost = True
                self._tell("lost", dst, str(error))
            finally:
                self._tell("sent", dst, offset)

    def _receive_all(self, src: int) -> None:
        head = torch.zeros(HEAD_BYTES, dtype=torch.uint8)
        try:
            while True:
                dist.recv(head, src)
                data = head.numpy().tobytes()
                n_bytes = int.from_bytes(data[:LENGTH_BYTES], "little")
                if n_bytes > self._limit_bytes:
                    self._tell(
                        "lied", src, f"a message of {n_bytes:,} bytes; the limit is {self._limit_bytes:,}"
                    )
                    return
                offset = self._in.allocate(n_bytes)
                assert offset is not None
                if n_bytes:
                    block = torch.frombuffer(self._in.memory, dtype=torch.uint8, count=n_bytes, offset=offset)
                    target = block.to(self._device)
                    dist.recv(target, src, group=self._groups[src < self._rank])
                    if target is not block:
                        block.copy_(target)
                self._tell("got", src, data, offset, n_bytes)
        except RuntimeError as error:
            self._tell("lost", src, str(error))


def _payload_groups() -> tuple[torch.device, tuple[Any, Any]]:
    """Return the payloads' device when sent, and the groups for down and up: NCCL if every rank has a GPU."""
    mine = str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None
    devices: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(devices, mine)
    if None in devices or len(set(devices)) < len(devices) or not dist.is_nccl_available():
        return torch.device("cpu"), (None, None)
    return torch.device("cuda:0"), (dist.new_group(backend="nccl"), dist.new_group(backend="nccl"))


def main() -> None:
    Rank(json.loads(sys.argv[1])).run()
    sys.stderr.flush()
    os._exit(0)  # do not join: threads that wait for peers block in C++ without a timeout


if __name__ == "__main__":
    main()
