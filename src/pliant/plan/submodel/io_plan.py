"""IO planning (STI 5.4): accumulated IO budgets and how they are spent."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from pliant.arrays import Float, Int
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS, PLANES
from pliant.ir.link import Link
from pliant.ir.program import FULL, SliceRun
from pliant.plan.submodel.shape import StoreShape

TOLERANCE_S = 1e-9  # rounding error of sums of seconds

# Squared error relative to the weights' variance at 0..6 planes: prefixes of a 64-level Lloyd
# quantizer on Gaussian weights (design.md, "Store"; the 1-bit prefix is 1 - 2 / pi).
LLOYD_ERRORS = (1.0, 0.363, 0.153, 0.049, 0.0148, 0.0043, 0.0011)
# Equal-population clusters, the paper's.
EQUAL_POPULATION_ERRORS = (1.0, 0.40, 0.175, 0.080, 0.0387, 0.0199, 0.0110)

HeldPlanes = Int[
    np.ndarray, "n m"
]  # planes of each shard in memory before the run: 0..6, or 32 for full fidelity


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """The reads of one layer: `base` must arrive before it runs, `refinements` are optional.

    Each refinement is one short read job; both may be empty.
    """

    layer: int
    base: tuple[SliceRun, ...]
    refinements: tuple[tuple[SliceRun, ...], ...]

    @property
    def runs(self) -> tuple[SliceRun, ...]:
        return self.base + tuple(run for part in self.refinements for run in part)


class Ledger:
    """The accumulated IO budgets of one submodel while bits are chosen (STI 5.4.2).

    `budget_s[k]` is the IO time available to load layers 0..k; a load at layer k is debited there and at all
    later layers, only for planes that are not held. `need[k][part]` is a bit mask over slices. No layer may
    read more than `limit_bytes`, if given.
    """

    def __init__(
        self, shape: StoreShape, m: int, disk: Link, budget_s: Sequence[float], held: HeldPlanes,
        *, is_anytime: bool, full_chunk: int, planes_per_load: int = 1, limit_bytes: int | None = None,
    ) -> None:  # fmt: skip
        n = len(budget_s)
        self.n, self.m = n, m
        self.is_anytime = is_anytime
        self.full_chunk = full_chunk if is_anytime else m
        self.groups = _groups(is_anytime, planes_per_load)
        self.ladder, self.planes = shape.bits, shape.planes
        self.tiers = shape.tiers
        self.before = _neighbours(shape.places, m, tuple(self.groups))
        self.latency_s = disk.latency_s
        self.plane_s = shape.plane_bytes / disk.bandwidth_Bps
        self.full_s = shape.full_bytes / disk.bandwidth_Bps
        self.plane_bytes, self.full_bytes = shape.plane_bytes, shape.full_bytes
        self.limit_bytes = limit_bytes
        self.held = held
        self.held_masks = [_held_masks(row) for row in held.tolist()]
        self.need = [[0] * (PLANES + 1) for _ in range(n)]
        self.bits: list[list[int]] = held.tolist()
        self.load_s = [0.0] * n
        self.spare_s = list(budget_s)  # AIB(k) after all debits so far
        self.granted_s = 0.0
        self._known: dict[tuple[int, ...], float] = {}

    def grant(self, slack_s: float) -> None:
        """Add `slack_s` to every AIB: every layer may start that much later."""
        self.granted_s += slack_s
        self.spare_s = [spare + slack_s for spare in self.spare_s]

    def reserve(self, factor: float, granule_s: float) -> None:
        """Reserve IO time so that base planes are in time even if reads become `factor` times slower.

        Called at the lowest bits. The reads for layers 0..k must leave time for the base planes of every
        later layer at the slow pace, and for one refinement in progress (`granule_s`).
        """
        base_s = np.cumsum(self.load_s)
        spare_s = self.spare_s
        slower = factor - 1
        self.spare_s = [
            min(
                spare_s[k],
                *(
                    max(0.0, spare_s[j] - slower * (float(base_s[j] - base_s[k]) + granule_s))
                    for j in range(k + 1, self.n)
                ),
                float("inf"),
            )
            for k in range(self.n)
        ]

    def held_seconds(self, k: int) -> float:
        """Return the preload bonus of layer k (STI 5.4.2): the IO seconds that its held shards save."""
        row = self.held[k]
        n_full = int((row == FULL_BITS).sum())
        return n_full * self.full_s + (int(row.sum()) - FULL_BITS * n_full) * self.plane_s

    @property
    def is_valid(self) -> bool:
        """True if every AIB is non-negative and no layer reads too much."""
        return min(self.spare_s) >= -TOLERANCE_S and self.is_within_limit

    @property
    def is_within_limit(self) -> bool:
        """True if no layer reads more than `limit_bytes`."""
        return all(map(self._is_within, self.need))

    def room_s(self, k: int) -> float:
        """Return the maximum cost of a load at layer k."""
        return min(self.spare_s[k:])

    def price(self, k: int, slices: int, bits: int) -> tuple[float, list[int]]:
        """The extra seconds to raise `slices` (a mask) of layer k to `bits`, and the layer's new needs."""
        need = list(self.need[k])
        held = self.held_masks[k]
        if bits == FULL_BITS:
            for part in range(LOWEST_BITS if self.is_anytime else 0, PLANES):
                need[part] &= ~slices
            for part in range(LOWEST_BITS if self.is_anytime else 0):
                need[part] |= slices & ~held[part] & ~held[FULL]
            need[FULL] |= slices & ~held[FULL]
        else:
            for part in range(bits):
                need[part] |= slices & ~held[part]
        return self._seconds(need) - self.load_s[k], need

    def raise_to(self, k: int, slices: int, bits: int) -> bool:
        """Raise `slices` of layer k to `bits` if the budgets allow it; False, without change, if not."""
        extra_s, need = self.price(k, slices, bits)
        if extra_s > self.room_s(k) + TOLERANCE_S or not self._is_within(need):
            return False
        self._debit(k, extra_s, need, slices, bits)
        return True

    def force(self, slices: Sequence[int], bits: int) -> None:
        """Raise `slices[k]` of every layer k to `bits`, ignoring the budgets."""
        for k, mask in enumerate(slices):
            if mask:
                self._debit(k, *self.price(k, mask, bits), mask, bits)

    def force_bits(self, bits: Sequence[Sequence[int]]) -> None:
        """Raise every shard to its bits in the grid `bits`, ignoring the budgets."""
        for k, row in enumerate(bits):
            for target in sorted(set(row)):
                mask = sum(1 << s for s, b in enumerate(row) if b == target and self.bits[k][s] < target)
                if mask:
                    self._debit(k, *self.price(k, mask, target), mask, target)

    def raise_all(self, slices: Sequence[int], bits: int) -> bool:
        """Raise `slices[k]` of every layer k to `bits` if the budgets allow it for all of them."""
        spent_s = 0.0
        prices = []
        for k, mask in enumerate(slices):
            extra_s, need = self.price(k, mask, bits)
            spent_s += extra_s
            if spent_s > self.spare_s[k] + TOLERANCE_S or not self._is_within(need):
                return False
            prices.append((extra_s, need))
        for k, (extra_s, need) in enumerate(prices):
            self._debit(k, extra_s, need, slices[k], bits)
        return True

    def shards_below(self, bits: int) -> list[int]:
        """Return, per layer, the mask of the shards with fewer than `bits` bits."""
        return [sum(1 << s for s, b in enumerate(row) if b < bits) for row in self.bits]

    def unheld_shards(self) -> list[int]:
        """Return, per layer, the mask of the shards that the preload buffer alone cannot run."""
        return [sum(1 << s for s, h in enumerate(row) if h < LOWEST_BITS) for row in self.held.tolist()]

    def copy(self) -> "Ledger":
        other = object.__new__(Ledger)
        other.__dict__.update(self.__dict__)
        other.need = [list(row) for row in self.need]
        other.bits = [list(row) for row in self.bits]
        other.load_s = list(self.load_s)
        other.spare_s = list(self.spare_s)
        return other

    def _debit(self, k: int, extra_s: float, need: list[int], slices: int, bits: int) -> None:
        self.need[k] = need
        self.load_s[k] += extra_s
        self.spare_s[k:] = [spare - extra_s for spare in self.spare_s[k:]]
        row = self.bits[k]
        while slices:
            low = slices & -slices
            slices ^= low
            row[low.bit_length() - 1] = max(bits, row[low.bit_length() - 1])

    def _is_within(self, need: list[int]) -> bool:
        if self.limit_bytes is None:
            return True
        planes = sum(mask.bit_count() for mask in need[:PLANES])
        n_bytes = planes * self.plane_bytes + need[FULL].bit_count() * self.full_bytes
        return n_bytes <= self.limit_bytes

    def _seconds(self, need: list[int]) -> float:
        key = tuple(need)
        seconds = self._known.get(key)
        if seconds is None:
            seconds = self._known[key] = self._read_seconds(need)
        return seconds

    def _read_seconds(self, need: list[int]) -> float:
        planes = sum(mask.bit_count() for mask in need[:PLANES])
        reads = 0
        for group in self.groups:
            if group.start == FULL:
                reads += sum(-(-count // self.full_chunk) for _, count in _spans(need[FULL]))
                continue
            file = 0
            for part in group:
                if need[part]:
                    for first, ones, place in self.tiers[part]:
                        file |= (need[part] >> first & ones) << place
            reads += (file & ~(file << 1)).bit_count()
        n_full = need[FULL].bit_count()
        return planes * self.plane_s + n_full * self.full_s + reads * self.latency_s

    def load(self, k: int, layer: int) -> LayerLoad:
        """Return the reads of layer k (the model's `layer`), in reading order."""
        loads: list[tuple[SliceRun, ...]] = []
        for group in self.groups:
            runs = [
                SliceRun(layer, part, first, count)
                for part in group
                for first, count in _spans(self.need[k][part])
            ]
            if self.is_anytime and FULL in group:
                loads += [(piece,) for run in runs for piece in _pieces(run, self.full_chunk)]
            else:
                loads.append(tuple(runs))
        return LayerLoad(layer, loads[0], tuple(runs for runs in loads[1:] if runs))


def count_reads(shape: StoreShape, runs: Sequence[SliceRun]) -> int:
    """Return the number of reads for `runs` of one load: adjacent parts of the layer's file are one read."""
    tiers = shape.tiers
    file = 0
    for run in runs:
        slices = ((1 << run.count) - 1) << run.first
        for first, ones, place in tiers[run.part]:
            file |= (slices >> first & ones) << place
    return (file & ~(file << 1)).bit_count()


def fill_floor(ledger: Ledger) -> bool:
    """Give every shard the lowest bits that execution needs (STI 5.4.3); False if AIBs become negative."""
    ledger.force(ledger.shards_below(LOWEST_BITS), LOWEST_BITS)
    return ledger.is_valid


def fill_uniform(ledger: Ledger, slices: Sequence[int]) -> int:
    """First pass (STI 5.4.3): raise all of `slices` to the highest common bits; return these."""
    best = LOWEST_BITS
    for bits in ledger.ladder[1:]:
        if not ledger.raise_all(slices, bits):
            break
        best = bits
    return best


def fill_by_importance(ledger: Ledger, weights: Float[np.ndarray, "n m"]) -> None:
    """Second pass (STI 5.4.3): shards in order of importance, each to the highest bits that still fit."""
    for flat in np.argsort(-weights, axis=None, kind="stable").tolist():
        k, s = divmod(flat, ledger.m)
        for bits in reversed(ledger.ladder):
            if bits <= ledger.bits[k][s] or ledger.raise_to(k, 1 << s, bits):
                break


def fidelity(
    bits: Sequence[Sequence[int]], weights: Float[np.ndarray, "n m"], errors: Sequence[float]
) -> float:
    """Return the importance-weighted share of the weights' variance that `bits` keep: 1 is full fidelity."""
    table = np.zeros(FULL_BITS + 1)
    table[: PLANES + 1] = errors
    return float(1 - (weights * table[np.asarray(bits)]).sum() / weights.sum())


def importance_weights(importance: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "n m"]:
    """Return importance as weights of mean 1; the lowest weight is a tenth of the highest."""
    low, high = importance.min(), importance.max()
    if high <= low:
        return np.ones_like(importance, dtype=np.float64)
    weights = 0.1 + 0.9 * (importance - low) / (high - low)
    return np.asarray(weights / weights.mean())


def _groups(is_anytime: bool, planes_per_load: int) -> list[range]:
    """Return the parts per load: all of them or, in anytime execution, base planes, then pieces."""
    if not is_anytime:
        return [range(PLANES + 1)]
    starts = range(LOWEST_BITS, PLANES, planes_per_load)
    refined = [range(q, min(q + planes_per_load, PLANES)) for q in starts]
    return [range(LOWEST_BITS), *refined, range(FULL, FULL + 1)]


@cache
def _neighbours(
    places: tuple[tuple[int, ...], ...], m: int, groups: tuple[range, ...]
) -> dict[tuple[int, int], tuple[int, int]]:
    """Return, for each (part, slice), the one just before it in the file that the same read may include."""
    at = {places[part][s]: (part, s) for part in range(PLANES + 1) for s in range(m)}
    before = {}
    for place, here in at.items():
        last = at.get(place - 1)
        if last is not None and any(here[0] in group and last[0] in group for group in groups):
            before[here] = last
    return before


def _held_masks(row: list[int]) -> list[int]:
    masks = [0] * (PLANES + 1)
    for s, planes in enumerate(row):
        for part in range(min(planes, PLANES + 1)):
            masks[part] |= 1 << s
    return masks


def _spans(mask: int) -> list[tuple[int, int]]:
    """Return runs of ones in `mask` as (first, count)."""
    spans = []
    first = 0
    while mask:
        skip = (mask & -mask).bit_length() - 1
        first += skip
        mask >>= skip
        count = (~mask & (mask + 1)).bit_length() - 1
        spans.append((first, count))
        mask >>= count
        first += count
    return spans


def _pieces(run: SliceRun, size: int) -> list[SliceRun]:
    end = run.first + run.count
    return [SliceRun(run.layer, run.part, at, min(size, end - at)) for at in range(run.first, end, size)]
