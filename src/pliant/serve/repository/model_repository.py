"""The models of a node: loaded, unloaded, evicted and reloaded while requests are served."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from math import ceil
from typing import final

from pliant.errors import BudgetError, DeadlineError, NodeError, PliantError
from pliant.route.choice.objective import Objective
from pliant.route.choice.request_terms import NO_TERMS, Terms
from pliant.run.unused_memory import release_unused
from pliant.serve.answers.metrics import Metrics
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.repository.live_model import LiveModel, ModelLease
from pliant.serve.repository.model_entry import ModelEntry, ModelKey, distinct
from pliant.serve.repository.model_loader import ModelLoader, check_room
from pliant.serve.repository.model_slot import (
    EVICTED,
    UNLOADED,
    IndexRow,
    LiveNodes,
    ModelSlot,
    find_slots,
    for_each,
)
from pliant.serve.telemetry.log_lines import MODEL_LOG

_LOG = logging.getLogger(MODEL_LOG)
_START_LOG = logging.getLogger("pliant.serve")
"""Of the initial models, which a node tells when it serves."""

FindModels = Callable[[], Sequence[ModelEntry]]
"""Finds models in addition to the named ones; called on a thread. Raises PliantError."""


@final
class ModelRepository:
    """Loads and unloads one model at a time while requests are served. Call on one event loop.

    A model is unloaded after its pending requests; new ones are refused. If the shared memory budget is too
    small for a new model, the least recently used models are evicted, and a request for one of them reloads
    it. If a load fails, the previous model stays in use, and evicted models are reloaded.
    """

    def __init__(
        self, entries: Iterable[ModelEntry], loader: ModelLoader, find: FindModels = lambda: ()
    ) -> None:
        """Raises InputError for two models with the same name and version.

        Models returned by `find` are known as well; it is called again whenever models are listed or one is
        loaded.
        """
        self._slots = {entry.key: ModelSlot(entry) for entry in distinct(entries)}
        self._loader, self._clock = loader, loader.clock
        self._find, self._found = find, set[ModelKey]()
        self._changing = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self.is_draining, self._log = False, _START_LOG
        self.nodes: Sequence[ServingNode] = LiveNodes(lambda: self._slots)
        """The nodes of the currently loaded models."""

    @property
    def found(self) -> frozenset[ModelKey]:
        """The models that were found in a folder, which stay when others are replaced."""
        return frozenset(self._found)

    @property
    def live(self) -> tuple[LiveModel, ...]:
        """The currently loaded models."""
        return tuple(slot.live for slot in self._slots.values() if slot.live is not None)

    @property
    def metrics(self) -> dict[tuple[str, str], Metrics]:
        """The metrics of all known models that were loaded or refused, by name and version."""
        every = ((key, slot.metrics) for key, slot in self._slots.items())
        return {(key.name, key.version): found for key, found in every if found is not None}

    def metrics_of(self, key: ModelKey) -> Metrics | None:
        """The metrics of a known model that was loaded before."""
        return self.metrics.get((key.name, key.version))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all known models, without duplicates."""
        return tuple(dict.fromkeys(key.name for key in self._slots))

    def versions(self, name: str) -> tuple[str, ...]:
        """The versions of a model that are loaded, or would be for a request; oldest first."""
        found = [key for key, slot in self._slots.items() if key.name == name and slot.is_wanted]
        return tuple(key.version for key in sorted(found, key=lambda key: key.age))

    def index(self, is_ready: bool = False) -> tuple[IndexRow, ...]:
        """All known models, or the loaded ones with `is_ready`."""
        every = self._slots.values()
        rows = (IndexRow(one.key.name, one.key.version, one.state, one.reason) for one in every)
        return tuple(row for row in rows if not is_ready or row.state == "READY")

    async def refresh(self) -> None:
        """Update the known models with the result of `find`; missing ones are dropped unless loaded.

        Raises PliantError.
        """
        found = {entry.key: entry for entry in await asyncio.to_thread(self._find)}
        for key in self._found - found.keys():
            slot = self._slots.get(key)
            if slot is None or (slot.live is None and not slot.is_wanted and slot.state == "UNAVAILABLE"):
                self._slots.pop(key, None)
                self._found.discard(key)
        self._found |= found.keys() - self._slots.keys()
        for key, entry in found.items():
            if key in self._found:  # also if known: its source may have moved
                self._slots.setdefault(key, ModelSlot(entry)).entry = entry

    async def start(self) -> None:
        """Load the initial models. Raises PliantError if one cannot be loaded.

        Models that do not fit beside the previous ones are loaded on their first request.
        """
        await self.refresh()
        for slot in list(self._slots.values()):
            if not slot.entry.is_initial:
                continue
            try:
                await self._load(slot, may_evict=False)
            except BudgetError as error:
                if not self.live or error.short_bytes is None:
                    raise
                slot.is_wanted, slot.reason = True, f"{EVICTED}: its next request loads it"
                slot.log_delay(error)
        self._log = _LOG

    async def load(self, name: str, version: str | None = None) -> None:
        """Load a model, or all its versions; a loaded model is reloaded if its files have changed.

        The load continues if the caller is cancelled. Raises NodeError (404) for an unknown model,
        BudgetError if memory is short, and PliantError if the model cannot be opened; in these cases nothing
        changes of that version and newer ones. Older versions were loaded before it, and stay.
        """
        await self.refresh()

        def load() -> Awaitable[None]:  # after other changes, which may have replaced the slots
            return for_each(find_slots(self._slots, name, version), self._load_if_other)

        await self._run_exclusively(load)

    async def unload(self, name: str, version: str | None = None) -> None:
        """Unload a model, or all its versions, after its pending requests.

        A model that is not loaded is not an error. Continues if the caller is cancelled. Raises NodeError
        (404).
        """
        slots = find_slots(self._slots, name, version)
        for slot in slots:
            slot.refuse_requests()
        await self._run_exclusively(lambda: for_each(slots, self._unload))

    def lease(self, name: str, version: str | None = None, asked: Terms | None = None) -> ModelLease:
        """A context that keeps the model loaded for one request; the newest version if none is given.

        An evicted model is loaded. If its last loading time exceeds the deadline of `asked`, the request is
        refused at once, and the model is loaded for later requests. Entering raises NodeError: 404 for an
        unknown model, 503 if it is not loaded, or if there is not enough memory or time.
        """
        return ModelLease(lambda: self.hold(name, version, asked), self._clock)

    async def hold(self, name: str, version: str | None, asked: Terms | None) -> LiveModel:
        """The loaded model, held until `release`. Raises like `lease`."""
        slot = self.wanted(name, version)
        if slot.live is not None:
            slot.live.hold(self._clock())
            return slot.live
        terms = NO_TERMS if asked is None else asked.with_defaults(slot.terms)
        self._check_time(slot, terms)
        self._begin_loading(slot)
        async with slot.within(terms, self._clock):
            return await slot.wait_for_live(self._clock)

    async def configure(self, entries: Sequence[ModelEntry], memory_bytes: int | None = None) -> None:
        """Replace the models by `entries`: load new and changed ones, unload the others.

        `memory_bytes` is the shared memory budget from now on, None for no change. A larger one is there for
        the new models; for a smaller one, the least recently used models are evicted at the end.

        The change is atomic: new models are loaded first; if that fails, or one of the loaded models alone
        needs more than `memory_bytes`, PliantError is raised, and the previous models and budget stay.
        """
        wanted = {entry.key: entry for entry in distinct(entries)}
        await self._run_exclusively(lambda: self._configure(wanted, memory_bytes))

    def use_defaults(self, terms: Terms, objective: Objective) -> None:
        """Change the default terms and objective of requests for all models."""
        for slot in self._slots.values():
            slot.use_defaults(terms, objective)

    def is_served(self, name: str, version: str | None = None) -> bool:
        """Whether requests are served: the model is loaded, or a request would load it."""
        return any(slot.is_wanted for slot in self._matching(name, version))

    def is_live(self, name: str, version: str | None = None) -> bool:
        """Whether the version that serves a request is loaded."""
        served = [slot for slot in self._matching(name, version) if slot.is_wanted]
        return bool(served) and served[-1].live is not None

    def drain(self) -> None:
        """Report all models as not ready; nothing is loaded any more."""
        self.is_draining = True
        for live in self.live:
            live.node.drain()

    async def close(self) -> None:
        """Close all models after pending requests, loads and unloads."""
        self.is_draining = True
        while self._under_way:
            await asyncio.wait(self._under_way)
        for slot in reversed(self._slots.values()):
            await slot.retire(UNLOADED)

    def newest(self, name: str, version: str | None) -> ModelSlot | None:
        """The slot of a known model, of the given version or the newest."""
        return next(reversed(self._matching(name, version)), None)

    def _matching(self, name: str, version: str | None) -> list[ModelSlot]:
        try:
            return find_slots(self._slots, name, version)
        except NodeError:
            return []

    def wanted(self, name: str, version: str | None) -> ModelSlot:
        """The slot for a request. Raises NodeError: 404 for an unknown model, 503 if it is not loaded."""
        known = find_slots(self._slots, name, version)
        wanted = [slot for slot in known if slot.is_wanted]
        if not wanted:
            raise NodeError(
                f"the model {known[-1].key} is not loaded ({known[-1].reason}): an operator can load it by "
                f"POST /v2/repository/models/{name}/load.",
                status=503,
            )
        return wanted[-1]

    def _check_time(self, slot: ModelSlot, terms: Terms) -> None:
        """Raise NodeError (503, from a DeadlineError) if loading takes longer than the deadline."""
        wait_s, deadline_s = slot.wait_s(self._clock()), terms.deadline_s
        if deadline_s is None or terms.best_effort or wait_s <= deadline_s:
            return
        self._begin_loading(slot)
        why = (
            f"{slot.key} was evicted, and loading it takes about {wait_s:.3g} s, longer than the deadline of "
            f"{deadline_s:.3g} s: it is being loaded; retry then, or use best_effort."
        )
        raise NodeError(why, status=503, retry_after_s=max(1, ceil(wait_s))) from DeadlineError(why, wait_s)

    def _begin_loading(self, slot: ModelSlot) -> None:
        if slot.loading is None or slot.loading.done():
            slot.loading = self._task(self._load_for_waiters(slot))

    async def _load_for_waiters(self, slot: ModelSlot) -> None:
        """Load the model that requests wait for; errors are passed to them."""
        try:
            async with self._change():
                if not slot.is_wanted:
                    raise NodeError(f"the model {slot.key} was unloaded in the meantime.", status=503)
                if slot.live is None:
                    await self._load(slot)
                slot.hold_for_waiters(self._clock())
        except BudgetError as error:
            slot.fail_waiters(NodeError(str(error), status=503))
        except PliantError as error:
            slot.fail_waiters(error)
        finally:
            slot.fail_waiters(NodeError(f"the model {slot.key} could not be loaded.", status=503))

    def _task(self, work: Awaitable[None]) -> "asyncio.Task[None]":
        async def run() -> None:
            await work

        task = asyncio.get_running_loop().create_task(run())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        """Exclude other loads and unloads; afterwards return unused memory to the operating system."""
        async with self._changing:
            try:
                yield
            finally:
                await asyncio.to_thread(release_unused)

    async def _run_exclusively(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` exclusively; it continues if the caller is cancelled."""

        async def run() -> None:
            async with self._change():
                await work()

        task = self._task(run())
        task.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(task)

    async def _load_if_other(self, slot: ModelSlot) -> None:
        if slot.live is None or not await asyncio.to_thread(slot.live.is_of, slot.entry):
            await self._load(slot)
        else:
            _LOG.info("%s was loaded already", slot.key, extra=slot.model.log_fields)
        slot.hold_for_waiters(self._clock())

    async def _unload(self, slot: ModelSlot) -> None:
        slot.refuse_requests()
        if await slot.retire(UNLOADED):
            _LOG.info("%s is unloaded", slot.key, extra=slot.model.log_fields)

    async def _load(self, slot: ModelSlot, may_evict: bool = True) -> None:
        """Load the slot's model; the previous one is closed afterwards."""
        self._check_open()
        reason = slot.reason
        slot.state = "LOADING" if slot.live is None else "READY"
        evicted: list[ModelSlot] = []
        slot.loading_since_s = begun_s = self._clock()
        try:
            live = await self._loader.load(slot.entry, self._slots, evicted if may_evict else None)
        except BaseException as error:
            if slot.live is None:
                slot.state = "UNAVAILABLE"
                slot.reason = f"loading failed: {error}" if isinstance(error, PliantError) else reason
            await self._restore(evicted)
            raise
        finally:
            slot.loading_since_s = None
        slot.load_s = self._clock() - begun_s
        old = self._use(slot, live)
        if old is not None:
            await old.close()

    def _check_open(self) -> None:
        if self.is_draining:
            raise NodeError("this node is shutting down and loads no models.", status=503)

    def _use(self, slot: ModelSlot, live: LiveModel) -> LiveModel | None:
        """Use `live` from now on; returns the previous model."""
        if self.is_draining:  # since the load began
            live.node.drain()
        old = slot.take_live(live)
        self._log.info("%s is loaded", slot.key, extra=slot.model.log_fields)
        return old

    async def _restore(self, evicted: Iterable[ModelSlot]) -> None:
        """Reload evicted models after a failed load; one that fails again waits for its next request."""
        for slot in evicted:
            try:
                await self._load(slot, may_evict=False)
                slot.hold_for_waiters(self._clock())
            except PliantError as error:
                slot.log_delay(error)

    async def _configure(self, wanted: dict[ModelKey, ModelEntry], memory_bytes: int | None) -> None:
        self._check_open()
        memory, before_bytes = self._loader.memory, None
        if memory is not None and memory_bytes is not None and memory_bytes > memory.total_bytes:
            before_bytes = memory.total_bytes
            await self._loader.resize(memory_bytes, self._slots)
        made, evicted = dict[ModelKey, LiveModel](), list[ModelSlot]()
        named = set(wanted)
        wanted |= {key: self._slots[key].entry for key in self._found - named if key in self._slots}
        try:
            for key, entry in wanted.items():
                slot = self._slots.get(key)
                current = None if slot is None else slot.live
                is_new = slot is None and entry.is_initial
                if is_new or (current is not None and not await asyncio.to_thread(current.is_of, entry)):
                    made[key] = await self._loader.load(entry, self._slots, evicted)
            if memory_bytes is not None:
                slots = [slot for key, slot in self._slots.items() if key in wanted and key not in made]
                check_room(memory_bytes, [*made.values(), *(slot.live for slot in slots)])
        except BaseException:
            for live in made.values():
                await live.close()
            if before_bytes is not None:
                await self._loader.resize(before_bytes, self._slots)
            await self._restore(evicted)
            raise
        self._found -= named
        left = [slot for key, slot in self._slots.items() if key not in wanted]
        self._slots = {key: self._slots.get(key) or ModelSlot(entry) for key, entry in wanted.items()}
        for key, entry in wanted.items():
            self._slots[key].entry = entry
        replaced = [self._use(self._slots[key], live) for key, live in made.items()]
        for slot in left:
            await self._unload(slot)
        for old in replaced:
            if old is not None:
                await old.close()
        if memory_bytes is not None:
            await self._loader.resize(memory_bytes, self._slots)
