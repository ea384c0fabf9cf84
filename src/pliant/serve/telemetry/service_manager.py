"""Notify systemd of the process state: READY, STOPPING, and WATCHDOG from the event loop (sd_notify(3))."""

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The socket of the service manager, and the watchdog interval.

    `address` is a path, or @ and the name of an abstract socket; None without a service manager.
    """

    address: str | None = None
    watchdog_s: float | None = None

    def notify(self, *states: str) -> None:
        """Send `states`, such as READY=1. Errors are ignored, such as a closed socket."""
        if self.address is None:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        with (
            suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(states).encode(), address)

    async def keep_alive(self) -> None:
        """Notify the watchdog twice per interval, until cancelled: systemd restarts a hanging process."""
        while self.watchdog_s is not None:
            self.notify("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)


def service_manager(environment: Mapping[str, str], pid: int | None = None) -> ServiceManager:
    """Read NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, which systemd sets for a unit of Type=notify."""
    address = environment.get("NOTIFY_SOCKET") or None
    text, watched = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID")
    is_mine = watched is None or watched == str(os.getpid() if pid is None else pid)
    is_watched = text.isascii() and text.isdigit() and int(text) > 0 and is_mine
    return ServiceManager(address, int(text) / 1e6 if is_watched and address is not None else None)
