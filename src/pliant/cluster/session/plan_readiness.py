"""The expected time to make a cluster's devices ready for an input of another length."""

from collections.abc import Mapping, Sequence
from typing import final

from pliant.cluster.lead.adaptive_planner import AdaptivePlanner
from pliant.cluster.lead.predict import Prediction
from pliant.ir.times.timing import Timing
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.run.array_sessions.compile_times import CompileTimes


def is_ready(planner: AdaptivePlanner, source: EncoderSource, n: int) -> bool:
    """Return whether a plan for length n is held ready; thread-safe."""
    return any(one.source.identity == source.identity and one.partition.tokens == n for one in planner.held)


@final
class PlanReadiness:
    """Times of searching a plan, compiling its stages and loading weights; safe during a run.

    The owner serialises `observe`.
    """

    def __init__(self) -> None:
        self._compiling = CompileTimes()
        self._loading: tuple[Sequence[object], float] = (), 0.0

    def expected(
        self, planner: AdaptivePlanner, source: EncoderSource, n: int, planned: Mapping[int, Prediction]
    ) -> Timing | None:
        """Return the expected time before a run of length n; None if a plan is ready.

        The weights to load are those of the plan, of those `planned`, for about that length.
        """
        if is_ready(planner, source, n):
            return None
        expected = self._compiling.expected
        if not planned:
            return expected
        solved = planned[min(planned, key=lambda length: (abs(length - n), length))]
        load_s = self._load_s(planner, source, solved)
        return Timing(expected.median_s + load_s, expected.p95_s + load_s)

    def observe(self, seconds: float, loaded_s: float) -> None:
        """Record what a plan that was not ready took, `loaded_s` of it for weights."""
        self._compiling.observe(max(seconds - loaded_s, 0.0))

    def _load_s(self, planner: AdaptivePlanner, source: EncoderSource, solved: Prediction) -> float:
        key = (source.identity, solved, *planner.held)
        known, load_s = self._loading  # other threads replace it
        if len(key) != len(known) or any(a is not b for a, b in zip(key, known, strict=True)):
            load_s = planner.load_s(source, solved.partition)
            self._loading = key, load_s
        return load_s
