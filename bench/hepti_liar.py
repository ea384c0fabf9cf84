"""A malicious member for bench/hepti_faults.py: it has the key, joins, and falsifies one of its messages.

Run as a script on an emulated device: `hepti_liar.py LIE AT JOIN NAME KEY MODEL`. The AT-th tensor that it
sends is invalid: with NaNs, too short, too long, with an invalid note, or never sent while it sends malformed
control messages; `raw` does not join and sends random bytes to open ports.
"""

import os
import random
import socket
import sys
import time
from pathlib import Path
from threading import Event, Lock
from typing import Any
from unittest.mock import patch

import numpy as np

from pliant import __version__
from pliant.api.open_encoder import open_encoder
from pliant.cluster.control import messenger
from pliant.cluster.control.messages import HelloRequest
from pliant.cluster.control.messenger import Messenger
from pliant.cluster.lead import open_member as launch
from pliant.cluster.net.comm import Tag
from pliant.cluster.net.comm_zmq import ZmqComm
from pliant.cluster.net.key import read_key
from pliant.errors import ClusterError
from pliant.settings import cache_folder

LIES = ("nan", "short", "long", "note", "control", "raw")


class LyingComm:
    """The wrapped engine, except for one message."""

    messenger: Messenger | None = None
    lie = ""
    at = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._comm = ZmqComm(*args, **kwargs)
        self._lock = Lock()
        self._n_sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def __enter__(self) -> "LyingComm":
        self._comm.__enter__()
        return self

    def __exit__(self, *of: Any) -> None:
        self._comm.__exit__(*of)

    def send(self, dst: str, tag: Tag, payload: np.ndarray, note: bytes = b"") -> None:
        with self._lock:
            self._n_sent += 1
            is_lie = self._n_sent == self.at
        if is_lie:
            print(f"lies about {tag}", flush=True)
            payload, note = self._lied(payload, note)
        self._comm.send(dst, tag, payload, note)

    def _lied(self, payload: np.ndarray, note: bytes) -> tuple[np.ndarray, bytes]:
        flat = np.ascontiguousarray(payload).reshape(-1)
        match self.lie:
            case "nan":
                return np.full_like(flat, np.nan), note
            case "short":
                return flat[: flat.size // 2], note
            case "long":
                return np.concatenate([flat, flat]), note
            case "note":
                return payload, random.randbytes(64)
            case _:
                self._say_nonsense()
                return payload, note

    def _say_nonsense(self) -> None:
        assert self.messenger is not None
        for n_bytes in (0, 1, 50, 5000):
            nonsense = random.randbytes(n_bytes)
            with patch.object(messenger, "encode", lambda *_, said=nonsense: said):
                for peer in self.messenger.peers:
                    self.messenger.send(peer, HelloRequest())


def main(lie: str, at: str, join: str, name: str, key: str, model: str) -> None:
    """Join and send the invalid message; runs until it is killed."""
    random.seed(name)
    if lie == "raw":
        _pour(join.split(","))
        return
    LyingComm.lie, LyingComm.at = lie, int(at)

    def keeping(*args: Any, **kwargs: Any) -> Messenger:
        LyingComm.messenger = Messenger(*args, **kwargs)
        return LyingComm.messenger

    launch.ZmqComm, launch.Messenger = LyingComm, keeping  # type: ignore[assignment,misc]
    cache = cache_folder()
    options = launch.MemberOptions(
        name=name,
        key=read_key(Path(key)),
        version=__version__,
        cache=cache,
        n_threads=1,
        on_event=lambda text: print(text, flush=True),
    )
    with launch.open_worker(options, [join], [open_encoder(model, cache)]):
        Event().wait()


def _pour(addresses: list[str], seconds: float = 2.0) -> None:
    """Random bytes, and the start of a ZeroMQ greeting followed by them, to every address."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        for address in addresses:
            host, _, port = address.rpartition(":")
            start = random.choice([b"", b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL"])
            try:
                with socket.create_connection((host, int(port)), 0.5) as line:
                    line.sendall(start + random.randbytes(random.choice([1, 64, 4096])))
            except OSError:
                continue
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ClusterError as error:
        sys.exit(f"{os.path.basename(sys.argv[0])}: {error}")
