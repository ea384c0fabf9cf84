"""The ways in which an elastic session can answer: its plans for every profiled length and many targets."""

from itertools import pairwise

import numpy as np

from pliant.ir.device import Percentile
from pliant.ir.times.trade import Level
from pliant.plan.result import WHOLE_S
from pliant.run.submodel.planning import LEAST_S
from pliant.run.submodel.submodel_runner import SubmodelRunner

_N_TARGETS = 14
"""Plans for each length, from the smallest submodel's time to the whole model's, in equal ratios."""


def levels(runner: SubmodelRunner) -> list[Level]:
    """What `runner` runs for each profiled length, under targets from the least to any; these are the keys.

    All is as the device was profiled, over the preload buffer as it is: smaller submodels use part of what
    that holds.
    """
    found: list[Level] = []
    for before, last in pairwise((-1, *runner.device.lengths)):
        least_s, most_s = (_seconds(runner, last, t, "p95") for t in (LEAST_S, WHOLE_S))
        spare = 1.0 + 1e-6 - runner.options.margin
        targets = np.geomspace(least_s / spare, max(most_s, least_s) / spare, _N_TARGETS)
        found += [_level(runner, before + 1, last, t) for t in (LEAST_S, *targets.tolist(), WHOLE_S)]
    return found


def _level(runner: SubmodelRunner, first: int, last: int, target_s: float) -> Level:
    plan = runner.plan(last, target_s, as_profiled=True)
    share = plan.n * plan.width * plan.fidelity / (plan.shape.n_layers * plan.shape.n_slices)
    ends = (max(1, first), last)
    seconds = [_seconds(runner, n, target_s, "median") for n in ends]
    bounds = [max(s, _seconds(runner, n, target_s, "p95")) for s, n in zip(seconds, ends, strict=True)]
    return Level(
        first=first,
        last=last,
        key=target_s,
        accuracy=plan.expected_accuracy,
        rank=share if plan.expected_accuracy is None else plan.expected_accuracy,
        seconds=(seconds[0], seconds[1]),
        bounds=(bounds[0], bounds[1]),
    )


def _seconds(runner: SubmodelRunner, n_tokens: int, target_s: float, percentile: Percentile) -> float:
    """From text to answer, by the profile."""
    bound = runner.bound(n_tokens, target_s, as_profiled=True)
    return runner.planner.forecast(bound.pipeline.program, n_tokens, percentile)[0]
