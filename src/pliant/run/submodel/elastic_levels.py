"""The service levels of an elastic session: its plans for every profiled length and many targets."""

from itertools import pairwise
from typing import get_args

import numpy as np

from pliant.ir.times.level_selector import Level
from pliant.ir.times.timing import Percentile, Timing
from pliant.plan.plan import NO_TARGET_S
from pliant.run.submodel.plans.submodel_planner import LEAST_S
from pliant.run.submodel.submodel_runner import SubmodelRunner

_N_TARGETS = 14
"""Targets for each length, from the smallest submodel's time to the whole model's, in equal ratios."""

_MOST_CACHED = 4
"""Sets of levels that are cached: a deadline that moves to and fro reuses them."""


def plan_levels(runner: SubmodelRunner) -> list[Level]:
    """The plans of `runner` for each profiled length, keyed by targets from the least to unlimited.

    They use the profiled device speed and the current preload buffer, of which smaller submodels use a part.
    Plans made before for the same terms and weights are reused, the latest few of them.
    """
    if runner.weights.keep_bytes is not None:  # an engagement changes the buffer after every run
        return _planned(runner)
    cache, key = runner.levels_cache, runner.levels_key
    found = cache.pop(key, None)
    cache[key] = _planned(runner) if found is None else found
    if len(cache) > _MOST_CACHED:
        del cache[next(iter(cache))]
    return cache[key]


def _planned(runner: SubmodelRunner) -> list[Level]:
    found: list[Level] = []
    for before, last in pairwise((-1, *runner.device.lengths)):
        least_s, most_s = (_time(runner, last, t).p95_s for t in (LEAST_S, NO_TARGET_S))
        spare = 1.0 + 1e-6 - runner.options.margin
        targets = np.geomspace(least_s / spare, max(most_s, least_s) / spare, _N_TARGETS)
        found += [_level(runner, before + 1, last, t) for t in (LEAST_S, *targets.tolist(), NO_TARGET_S)]
    return found


def _level(runner: SubmodelRunner, first: int, last: int, target_s: float) -> Level:
    plan = runner.plan(last, target_s, as_profiled=True)
    share = plan.n * plan.width * plan.fidelity / (plan.shape.n_layers * plan.shape.n_slices)
    return Level(
        first=first,
        last=last,
        key=target_s,
        accuracy=plan.expected_accuracy,
        rank=share if plan.expected_accuracy is None else plan.expected_accuracy,
        load_bytes=sum(map(plan.load_bytes, range(plan.n))),
        ends=(_time(runner, max(1, first), target_s), _time(runner, last, target_s)),
    )


def _time(runner: SubmodelRunner, n_tokens: int, target_s: float) -> Timing:
    """The time from text to answer, by the profile."""
    program = runner.bound(n_tokens, target_s, as_profiled=True).pipeline.program
    median_s, p95_s = (runner.planner.forecast(program, n_tokens, p)[0] for p in get_args(Percentile))
    return Timing(median_s, max(median_s, p95_s))
