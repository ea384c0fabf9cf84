"""Cache recently found partitions by approximate length: a search takes as long as a short run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import final

from pliant.cluster.lead.margin import PlanKind, kind_of
from pliant.cluster.lead.predict import Prediction, layer_seconds, predict
from pliant.cluster.net.activation_coding import Coding
from pliant.cluster.watch.adapt import Topology, find_overloaded, find_recovered, reason_to_solve
from pliant.errors import BudgetError
from pliant.ir.partition import Partition
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.activation_bytes import memory_bytes, whole_memory_bytes

_NEAR = 1.25
"""Lengths that differ by a larger factor need their own search."""
_FRESH_S = 10.0
"""Lifetime of a partition in seconds: the saving required of a split is learned meanwhile."""
_MOST = 16
_SHARE = 0.02
"""Share of the time that searches take at most while an earlier partition performs about as well."""
_FAR, _WORSE = 4.0, 1.5
"""Limits of "about as well": the ratio of lengths, and the ratio of a layer's time to that when found."""


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    spec: EncoderSpec
    solved: Prediction
    need: Mapping[str, int]
    whole_bytes: int
    found_s: float

    def is_near(self, tokens: int, now_s: float) -> bool:
        """Return whether it is for about that length, and recent."""
        before = self.solved.partition.tokens
        return max(before, tokens) <= _NEAR * min(before, tokens) and now_s - self.found_s <= _FRESH_S

    def fits(self, tokens: int, topology: Topology) -> bool:
        """Return whether devices have memory for so many tokens, with rows in proportion."""
        before = self.solved.partition
        need = self.need if tokens <= before.tokens else memory_bytes(self.spec, before.resize(tokens))
        return not find_overloaded(need, topology)

    def is_current(self, topology: Topology) -> bool:
        """Return whether no change since would concern a search and be noticeable in a layer's time."""
        before, participants = self.solved.topology, self.solved.partition.participants
        if before.capabilities.keys() != topology.capabilities.keys():
            return False

        def felt_s(by: Topology) -> float:
            return self.solved.layer_s if by is before else layer_seconds(self.solved, by)

        reason = reason_to_solve(before, topology, participants, self.need, self.whole_bytes, felt_s)
        return reason is None and not find_recovered(before, topology, participants)

    def is_acceptable(self, tokens: int, topology: Topology) -> bool:
        """Return whether it performs about as well as when it was found, though a better one may exist."""
        solved, before = self.solved, self.solved.partition.tokens
        if max(before, tokens) > _FAR * min(before, tokens):
            return False
        is_of_all = solved.topology.capabilities.keys() == topology.capabilities.keys()
        if not is_of_all or not self.fits(tokens, topology):
            return False
        return layer_seconds(solved, topology) <= _WORSE * solved.layer_s


@final
class PartitionCache:
    """The latest partitions of all models. Thread-safe.

    If shares are set by the user (not `is_free`), a submodel's shares are in proportion.
    """

    def __init__(self, clock: Callable[[], float], *, is_free: bool = True) -> None:
        self._clock, self._is_free = clock, is_free
        self._found: tuple[_CacheEntry, ...] = ()
        self._roomy: dict[EncoderSpec, Partition] = {}
        self.search_s = 0.0
        """Duration of the latest search."""
        self._search_from_s = -inf

    @property
    def is_paused(self) -> bool:
        """Whether searches have used their share of the time, so that earlier partitions stay in use."""
        return self._clock() < self._search_from_s

    def get(
        self,
        spec: EncoderSpec,
        tokens: int,
        topology: Topology,
        search: Callable[[], Partition],
        coding: Coding = "fp32",
        *,
        may_pause: bool = True,
    ) -> Prediction:
        """Return the latest for about so many tokens, with rows in proportion, or one by `search`.

        A new search is also made if it might give another result for `topology`: devices joined or left, are
        slower, or are faster without a share, or have too little memory, or have more that was too little.
        While searches are paused and `may_pause` is set, a partition that performs about as well as before is
        returned instead, for other lengths too, and the result `is_due`. For a submodel, the result is the
        whole model's partition in proportion, or one of its devices alone if that is predicted to be faster.
        """
        now_s = self._clock()
        near = [one for one in reversed(self._found) if one.is_near(tokens, now_s)]
        latest = next((one for one in near if one.spec == spec), None)
        if latest is not None and latest.is_current(topology) and latest.fits(tokens, topology):
            return predict(spec, latest.solved.partition.resize(tokens), topology, coding)
        larger = next((one for one in near if _is_part(spec, one.spec) and one.is_current(topology)), None)
        if larger is None and may_pause and self.is_paused:
            before = self._find_acceptable(spec, tokens, topology)
            if before is not None and before.spec == spec:
                solved = predict(spec, before.solved.partition.resize(tokens), topology, coding)
                return replace(solved, is_due=True)
            if before is not None:
                return replace(self._derive_from_larger(spec, before, tokens, topology, coding), is_due=True)
        if larger is None:
            try:
                partition = search()
            except BudgetError:
                kept = self._find_roomy(spec, tokens, topology)
                if kept is None:
                    raise
                partition = kept
            ended_s = self._clock()
            self.search_s = ended_s - now_s
            self._search_from_s = ended_s + self.search_s / _SHARE
            solved = predict(spec, partition, topology, coding)
        else:
            solved = self._derive_from_larger(spec, larger, tokens, topology, coding)
        need, whole_bytes = memory_bytes(spec, solved.partition), whole_memory_bytes(spec, tokens)
        found = _CacheEntry(spec, solved, need, whole_bytes, now_s)
        self._found = (*self._found, found)[-_MOST:]
        return solved

    def keep(self, spec: EncoderSpec, partition: Partition) -> None:
        """Keep a partition for a long input, to use with fewer rows where a search finds none."""
        self._roomy[spec] = partition

    def _find_roomy(self, spec: EncoderSpec, tokens: int, topology: Topology) -> Partition | None:
        """Return the partition kept for a model, with so many rows, if there is memory for it."""
        kept = self._roomy.get(spec)
        if kept is None or not {*kept.participants} <= topology.capabilities.keys():
            return None
        found = kept.resize(tokens)
        return None if find_overloaded(memory_bytes(spec, found), topology) else found

    def _find_acceptable(self, spec: EncoderSpec, tokens: int, topology: Topology) -> _CacheEntry | None:
        """Return the latest that performs about as well as when found, of this model or the whole one."""
        same = (one for one in reversed(self._found) if one.spec == spec)
        larger = (one for one in reversed(self._found) if _is_part(spec, one.spec))
        latest = (next(same, None), next(larger, None))
        return next((one for one in latest if one is not None and one.is_acceptable(tokens, topology)), None)

    def _derive_from_larger(
        self, spec: EncoderSpec, larger: _CacheEntry, tokens: int, topology: Topology, coding: Coding
    ) -> Prediction:
        """Return a submodel's partition, derived from the whole model's."""
        whole = larger.solved.partition
        columns = spec.ffn if whole.n_columns else 0
        cut = whole.resize(tokens, spec.n_heads, columns, spec.n_layers)
        few = cut.participants if self._is_free and cut.mode == "ws" and len(cut.participants) > 1 else ()
        alone = [cut.on_device(device) for device in few]
        fits = [one for one in alone if not find_overloaded(memory_bytes(spec, one), topology)]
        every = (predict(spec, one, topology, coding) for one in (cut, *fits))
        return min(every, key=lambda one: one.seconds)

    def drop(self, kind: PlanKind) -> None:
        """Drop all of a kind; searches stay paused for other partitions."""
        self._found = tuple(one for one in self._found if kind_of(one.solved.partition) != kind)

    def clear(self) -> None:
        """Drop all, so that each later request is searched again."""
        self._found, self._search_from_s = (), -inf


def _is_part(spec: EncoderSpec, larger: EncoderSpec) -> bool:
    """Return whether `spec` is a submodel of `larger`."""
    if spec.family != larger.family or larger.ffn % larger.n_heads or spec == larger:
        return False
    is_smaller = spec.n_layers <= larger.n_layers and spec.n_heads <= larger.n_heads
    return is_smaller and larger.submodel(spec.n_layers, spec.n_heads) == spec
