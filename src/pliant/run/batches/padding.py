"""Run padded feeds in a bucket, compare once with an unpadded run, and cut the outputs back."""

from collections.abc import Callable, Sequence
from typing import final

import numpy as np

from pliant.errors import InputError
from pliant.ir.graph import TensorType
from pliant.ir.port import Port
from pliant.run.batches.buckets import BucketFit, Buckets, Cuts, cut, find_cuts, find_differences
from pliant.run.session.ports import Feeds, Shapes, check_writable

_Arrays = dict[str, np.ndarray]
_Shapes = tuple[tuple[int, ...], ...]
UncachedRun = Callable[[Feeds], _Arrays]


@final
class Padding:
    """The arrays that feeds are padded into, and the results of comparisons.

    A comparison is valid for its buckets and for the set of them that is padded. A comparison of feeds that
    equal their padding, such as a warm-up on zeros, finds no difference; the next run compares again. A
    difference that depends on other values is not detected. The owner serialises calls.
    """

    def __init__(self, buckets: Buckets, inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
        buckets.check(inputs)
        self._buckets, self._inputs, self._outputs = buckets, inputs, outputs
        self._staged: dict[tuple[tuple[str, int], ...], tuple[_Shapes, _Arrays, _Arrays]] = {}
        self._cuts: dict[tuple[tuple[str, int, bool], ...], Cuts] = {}

    def fit(self, shapes: Shapes) -> BucketFit:
        """The sizes fed and the sizes to run. Raises InputError naming a size beyond the largest bucket."""
        return self._buckets.fit(self._inputs, shapes)

    def pad(self, feeds: Feeds, fit: BucketFit) -> Feeds:
        """The feeds, padded to the sizes that run."""
        return self._buckets.pad(self._inputs, feeds, fit, {})

    def cuts(self, fit: BucketFit) -> Cuts | None:
        """How answers are cut back; None before a comparison."""
        return self._cuts.get(fit.key)

    def answer(
        self,
        fit: BucketFit,
        feeds: Feeds,
        out: Feeds | None,
        run: Callable[[Feeds, Feeds], _Arrays],
        run_uncached: UncachedRun,
    ) -> _Arrays:
        """The answer for the exact shape, in new arrays or in `out`.

        `run(feeds, out)` runs padded feeds, which are arrays that this object reuses; `run_uncached(feeds)`
        runs a comparison and keeps no image for it. Raises InputError naming dimensions whose padding changes
        an answer, and the outputs.
        """
        shapes = tuple(fit.shape(port, feeds[port.name].shape) for port in self._inputs)
        held, inputs, results = self._staged.get(tuple(fit.run.items()), (shapes, {}, {}))
        if held != shapes:  # a dimension without buckets has another size
            inputs, results = {}, {}
        self._staged[tuple(fit.run.items())] = shapes, inputs, results
        results |= run(self._buckets.pad(self._inputs, feeds, fit, inputs), results)
        cuts = self._cuts.get(fit.key)
        if cuts is None:
            cuts = self._compared(fit, feeds, results, run_uncached)
            if self._buckets.differs_from_padding(self._inputs, feeds, fit):
                self._cuts[fit.key] = cuts
        answers = cut(results, cuts, fit)
        return {port.name: _given(port, answers[port.name], out) for port in self._outputs}

    def clear(self) -> None:
        """Free the reused arrays."""
        self._staged.clear()

    def _compared(self, fit: BucketFit, feeds: Feeds, results: Feeds, run_uncached: UncachedRun) -> Cuts:
        exact = run_uncached(feeds)
        cuts = find_cuts(self._outputs, exact, results, fit)
        changed = find_differences(exact, cut(results, cuts, fit))
        if not changed:
            return cuts
        alone = fit.padded_dims if len(fit.padded_dims) > 1 else ()
        guilty = [s for s in alone if self._changes(fit.only(s), feeds, exact, run_uncached)]
        blamed = " or ".join(f"{s!r} from {fit.fed[s]} to {fit.run[s]}" for s in guilty or fit.padded_dims)
        raise InputError(
            f"the answer changes when {blamed} is padded: outputs {list(changed)} differ by up to "
            f"{max(changed.values()):.2g} of their largest number. The model takes padding for data; feed it "
            "a mask that hides it, give `pads`, or leave the bucket out."
        )

    def _changes(self, fit: BucketFit, feeds: Feeds, exact: Feeds, run_uncached: UncachedRun) -> bool:
        results = run_uncached(self.pad(feeds, fit))
        return bool(find_differences(exact, cut(results, find_cuts(self._outputs, exact, results, fit), fit)))


def _given(port: Port, answer: np.ndarray, out: Feeds | None) -> np.ndarray:
    """The answer, copied out of the reused arrays."""
    given = None if out is None else out.get(port.name)
    if given is None:
        return answer.copy()
    into = check_writable(port.name, given, TensorType(port.dtype, answer.shape))
    into[...] = answer
    return into
