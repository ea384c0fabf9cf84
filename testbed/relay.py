"""Delay every frame between pairs of TAP interfaces. Run as a script in the switch's namespace.

`relay.py DELAY_S...` makes the interfaces near0, far0, near1, far1, ...; a frame that enters one of a pair
leaves the other after the delay. It prints "ready" when they exist, reads lines "NUMBER DELAY_S" that change
a delay, and ends when its standard input is closed, so it does not outlive its parent.
"""

import contextlib
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_FRAME_BYTES = 2048
_AT_ONCE = 64


def main(delays_s: list[float]) -> None:
    """Relay until standard input ends."""
    pairs = [(_tap(f"near{i}"), _tap(f"far{i}")) for i in range(len(delays_s))]
    ways = [_DelayLine(*ends, i) for i, pair in enumerate(pairs) for ends in (pair, pair[::-1])]
    by_source = {way.source: way for way in ways}
    print("ready", flush=True)
    control = sys.stdin.fileno()
    while True:
        due_s = min((way.frames[0][0] for way in ways if way.frames), default=None)
        left_s = None if due_s is None else max(0.0, due_s - time.monotonic())
        ready, _, _ = select.select([control, *by_source], [], [], left_s)
        for fd in ready:
            if fd == control:
                if not _obey(os.read(control, 4096), delays_s):
                    return
                continue
            way = by_source[fd]
            way.take(delays_s[way.number])
        now_s = time.monotonic()
        for way in ways:
            way.pass_on(now_s)


class _DelayLine:
    """One direction of a pair: frames wait in order, so a shorter delay does not reorder them."""

    def __init__(self, source: int, target: int, number: int) -> None:
        self.source, self.target, self.number = source, target, number
        self.frames: deque[tuple[float, bytes]] = deque()

    def take(self, delay_s: float) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = os.read(self.source, _FRAME_BYTES)
            except OSError:  # no frame left, or the interface is down
                return
            self.frames.append((time.monotonic() + delay_s, frame))

    def pass_on(self, now_s: float) -> None:
        while self.frames and self.frames[0][0] <= now_s:
            with contextlib.suppress(OSError):  # an interface that is down drops frames
                os.write(self.target, self.frames.popleft()[1])


def _tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return fd


def _obey(orders: bytes, delays_s: list[float]) -> bool:
    """Apply the commands in `orders`; returns False at the end of the input."""
    for line in orders.decode().splitlines():
        number, delay_s = line.split()
        delays_s[int(number)] = float(delay_s)
    return bool(orders)


if __name__ == "__main__":
    main([float(text) for text in sys.argv[1:]])
