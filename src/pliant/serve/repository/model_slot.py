"""A model that a node knows, loaded or not, and the requests that wait until it is."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, final, overload

from pliant.errors import NodeError
from pliant.route.choice.terms import NO_TERMS, Terms
from pliant.serve.node.serving_node import Node
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_entry import ModelEntry, ModelKey

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
"""As the protocol's model repository extension calls them."""
NEVER, UNLOADED, EVICTED = "not loaded yet", "unloaded", "evicted"
"""Why a model is not ready."""


@dataclass(eq=False, slots=True)
class ModelSlot:
    """A model that the node knows. With `is_wanted`, a request has it loaded where it is not."""

    entry: ModelEntry
    state: State = "UNAVAILABLE"
    reason: str = NEVER
    is_wanted: bool = False
    live: LiveModel | None = None
    loading: "asyncio.Task[None] | None" = None
    load_s: float | None = None
    """What loading it took the last time, with what was evicted for it; None before the first."""
    loading_since_s: float | None = None
    terms: Terms = NO_TERMS
    """Of its requests that name none, once it was loaded."""
    waiters: "list[asyncio.Future[LiveModel]]" = field(default_factory=list)

    @property
    def key(self) -> ModelKey:
        return self.entry.key

    def wait_s(self, now_s: float) -> float:
        """What is left of loading it, by what that took; 0 where it is loaded, or that is not known."""
        if self.live is not None or self.load_s is None:
            return 0.0
        begun_s = now_s if self.loading_since_s is None else self.loading_since_s
        return max(self.load_s - (now_s - begun_s), 0.0)

    def hand_over(self, now_s: float) -> None:
        """Requests that wait for the model hold it before anything can evict it again."""
        assert self.live is not None
        for waiter in self._no_longer_waiting():
            self.live.hold(now_s)
            waiter.set_result(self.live)

    def disappoint(self, error: Exception) -> None:
        """Requests that wait for the model are told why it is not loaded."""
        for waiter in self._no_longer_waiting():
            waiter.set_exception(error)

    def take_live(self, live: LiveModel) -> LiveModel | None:
        """Answer with `live` from now on; returns what answered before."""
        old, self.live = self.live, live
        self.state, self.reason, self.is_wanted, self.terms = "READY", "", True, live.node.terms
        return old

    async def retire(self, reason: str) -> None:
        """Close the model once its requests are answered."""
        live, self.live = self.live, None
        if live is not None:
            self.state = "UNLOADING"
            await live.close()
        self.state, self.reason = "UNAVAILABLE", reason

    def _no_longer_waiting(self) -> "list[asyncio.Future[LiveModel]]":
        waiting, self.waiters = [one for one in self.waiters if not one.done()], []
        return waiting


Slots = Mapping[ModelKey, ModelSlot]


def known_slots(slots: Slots, name: str, version: str | None) -> list[ModelSlot]:
    """The versions of a model, or the one that is named, the oldest first. Raises NodeError (404)."""
    found = sorted((slot for key, slot in slots.items() if key.name == name), key=lambda slot: slot.key.age)
    if not found:
        have = ", ".join(repr(one) for one in dict.fromkeys(key.name for key in slots)) or "none"
        raise NodeError(f"this node has no model {name[:80]!r}; it has {have}.", status=404)
    some = [slot for slot in found if version in (None, slot.key.version)]
    if not some:
        have = ", ".join(slot.key.version for slot in found)
        raise NodeError(f"{name} has no version {(version or '')[:80]!r}; it has {have}.", status=404)
    return some


@final
class LiveNodes(Sequence[Node]):
    """The nodes of the models of `slots()` that are loaded, as they are whenever it is looked at."""

    def __init__(self, slots: Callable[[], Slots]) -> None:
        self._slots = slots

    @overload
    def __getitem__(self, at: int) -> Node: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[Node]: ...

    def __getitem__(self, at: int | slice) -> Node | Sequence[Node]:
        return self._nodes()[at]

    def __len__(self) -> int:
        return len(self._nodes())

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes())

    def _nodes(self) -> list[Node]:
        return [slot.live.node for slot in self._slots().values() if slot.live is not None]
