"""Let a session notice devices that joined or left, between its answers."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, final

from pliant.errors import PliantError
from pliant.run.session.session import Session
from pliant.serve.answers.admission import Admission

_LOOK_S = 1.0


@final
class DeviceWatch:
    """Calls `look_again` of a session, off the event loop, since that may be slow; call on that loop."""

    def __init__(self, served: Session[Any], admission: Admission, clock: Callable[[], float]) -> None:
        self._served, self._admission, self._clock = served, admission, clock
        self._may_change = type(served).look_again is not Session.look_again
        self._looked_s, self._takes_s = clock(), 0.0
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin to look, unless that was done within `_LOOK_S`, or the model is busy."""
        now_s = self._clock()
        if self._may_change and now_s - self._looked_s > _LOOK_S and self._admission.is_idle:
            self._looked_s = now_s
            self._looking = asyncio.get_running_loop().create_task(self._look())

    def expire(self) -> None:
        """Let the next `begin` look: an answer has failed."""
        self._looked_s = -inf

    async def look(self) -> None:
        """Look now, unless the model is busy; wait for that at most `_LOOK_S`."""
        self.expire()
        self.begin()
        if self._looking is not None:
            await asyncio.wait({self._looking}, timeout=_LOOK_S)

    async def _look(self) -> None:
        with suppress(PliantError):  # the session's levels say why
            done = await self._admission.run(self._served.look_again, self._takes_s)
            self._takes_s = done.spent_s
