"""Open a model within the shared memory budget, and evict other models if needed."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol, final

from pliant.errors import BudgetError
from pliant.quantities import format_bytes
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.eviction import EvictableModel, choose_evictions
from pliant.serve.repository.live_model import ConnectedModel, LiveModel
from pliant.serve.repository.model_entry import ModelEntry, ModelKey, OpenModel
from pliant.serve.repository.model_slot import EVICTED, ModelSlot, Slots
from pliant.serve.telemetry.log_lines import MODEL_LOG

_LOG = logging.getLogger(MODEL_LOG)


class Connect(Protocol):
    """Creates the node and the application of an opened model; `stack` closes their resources."""

    def __call__(
        self, entry: ModelEntry, opened: OpenModel, stack: AsyncExitStack
    ) -> Awaitable[ConnectedModel]: ...


@final
@dataclass(slots=True)
class ModelLoader:
    """Loads models, one at a time. Call on one event loop."""

    connect: Connect
    memory: MemoryBudget | None = None
    clock: Callable[[], float] = time.monotonic

    async def load(self, entry: ModelEntry, slots: Slots, evicted: list[ModelSlot] | None) -> LiveModel:
        """Load the model of `entry`; models of `slots` are evicted if needed and added to `evicted`.

        With `evicted` None, none are evicted. Raises BudgetError if memory does not suffice even so, and
        PliantError if the model cannot be opened.
        """
        stamp = await asyncio.to_thread(entry.stamp)
        while True:
            before_bytes = self._needs_bytes
            try:
                opened = await asyncio.to_thread(entry.open, self.memory)
                break
            except BudgetError as error:
                if error.short_bytes is None or evicted is None:
                    raise
                victims = self._victims(entry, slots, error.short_bytes, error)
            evicted.extend(victims)
            await _evict(victims, str(entry.key))
        async with AsyncExitStack() as stack:
            connecting = self.connect(entry, opened, stack)  # its tasks outlive the request that loads it
            connected = await Context().run(asyncio.ensure_future, connecting)
            kept = stack.pop_all()
        freed_bytes = self._needs_bytes - before_bytes
        return LiveModel(entry, connected, kept, stamp, freed_bytes, self.clock())

    async def resize(self, total_bytes: int, slots: Slots) -> None:
        """Change the shared budget; the least recently used models are evicted until the rest fits.

        Raises BudgetError if it is too small without any model.
        """
        assert self.memory is not None
        while True:
            try:
                await asyncio.to_thread(self.memory.resize, total_bytes)
                return
            except BudgetError as error:
                every = _evictable(slot.live for slot in slots.values())
                if error.short_bytes is None or not every:
                    raise
                oldest = min(every, key=lambda one: one.last_used_s)
                keys = choose_evictions(every, error.short_bytes) or (oldest.key,)
            await _evict([slots[key] for key in keys], "a smaller memory budget")

    @property
    def _needs_bytes(self) -> int:
        return 0 if self.memory is None else self.memory.needs_bytes

    def _victims(
        self, entry: ModelEntry, slots: Slots, short_bytes: int, error: BudgetError
    ) -> list[ModelSlot]:
        """Choose models to evict. Raises BudgetError if the others cannot make enough room."""
        live = _evictable(slot.live for slot in slots.values())
        others = [one for one in live if one.key != entry.key]
        found = choose_evictions(others, short_bytes)
        if found:
            return [slots[key] for key in found]
        room = sum(one.frees_bytes for one in others)
        itself = ", or unload it before loading it again" if len(others) < len(live) else ""
        raise BudgetError(
            f"{entry.key} needs {format_bytes(short_bytes)} more memory than is free, and evicting all other "
            f"models would free {format_bytes(room)}: start the node with more --memory{itself}. {error}"
        ) from error


def check_room(memory_bytes: int, models: Iterable[LiveModel | None]) -> None:
    """Raise BudgetError if one of the loaded models alone needs more."""
    for live in models:
        if live is not None and live.floor_bytes > memory_bytes:
            raise BudgetError(
                f"a memory of {format_bytes(memory_bytes)} is too little for {live.key}, which needs "
                f"{format_bytes(live.floor_bytes)}: give as much, or leave the model out.",
                live.floor_bytes - memory_bytes,
            )


def _evictable(models: Iterable[LiveModel | None]) -> list[EvictableModel[ModelKey]]:
    """The loaded models of `models`, with what evicting each frees."""
    return [EvictableModel(one.key, one.floor_bytes, one.last_used_s) for one in models if one is not None]


async def _evict(victims: Iterable[ModelSlot], why: str) -> None:
    """Close the models after their pending requests; `why` is what they make room for."""
    for slot in victims:
        _LOG.info("%s is evicted for %s", slot.key, why, extra=slot.model.log_fields)
        await slot.retire(f"{EVICTED} for {why}: its next request loads it")
