"""Make the replies of an elastic session: outputs, measured times and predicted times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pliant.ir.reply import Reply
from pliant.plan.plan import requested_target
from pliant.run.submodel.elastic_details import ElasticDetails
from pliant.run.submodel.submodel_runner import SubmodelRunner, TextAnswer
from pliant.system import peak_rss_bytes


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """The times of one input: seconds until its answer, seconds of these spent waiting for others, and the
    target.
    """

    seconds: float
    waited_s: float
    target_s: float


def make_replies(
    runner: SubmodelRunner,
    name: str,
    answered: Sequence[TextAnswer],
    times: Sequence[AnswerTimes],
    outputs_of: Callable[[np.ndarray], dict[str, Any]],
) -> list[Reply[ElasticDetails]]:
    """The replies to the inputs of one run of the session called `name`; `outputs_of` makes the output fields
    from the model's numbers.
    """
    accuracy = runner.expected_accuracy(answered[0])
    details = _details(runner, answered[0], times[0].target_s, accuracy)
    return [
        Reply(
            endpoint=name,
            seconds=time.seconds,
            details=details,
            length=one.n_tokens,
            waited_s=time.waited_s,
            target_s=requested_target(time.target_s),
            accuracy=accuracy,
            cut=one.bound.plan.cut,
            **outputs_of(one.numbers),
        )
        for one, time in zip(answered, times, strict=True)
    ]


def _details(
    runner: SubmodelRunner, answered: TextAnswer, target_s: float, accuracy: float | None
) -> ElasticDetails:
    plan, outcome = answered.bound.plan, answered.outcome
    predicted_s, predicted = runner.forecast(answered)
    return ElasticDetails(
        submodel=(plan.n, plan.width),
        accuracy_interval=runner.planner.interval(accuracy),
        bits=outcome.bits,
        planned_bits=plan.bits,
        predicted_s=predicted_s,
        resident_weight_bytes=runner.weights.n_bytes,
        arena_bytes=runner.engine.arena_bytes,
        peak_rss_bytes=peak_rss_bytes(),
        read_bytes=outcome.read_bytes,
        spans=outcome.spans,
        predicted_spans=predicted,
        program=answered.bound.pipeline.program,
        within_reach=runner.is_within_reach(answered, target_s),
    )
