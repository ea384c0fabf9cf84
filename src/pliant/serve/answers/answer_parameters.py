"""The parameters of a response: accuracy, joules, deadline, and which endpoint answered, and why."""

import msgspec

from pliant.ir.reply import Reply
from pliant.route.router import Router
from pliant.serve.answers.explain_choice import MemoryOf, explain_answer
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest

_ENCODER = msgspec.json.Encoder()


def answer_parameters(
    asked: RoutedRequest, answer: RoutedAnswer, router: Router, now_s: float, memory_of: MemoryOf
) -> dict[str, object]:
    """The parameters of a response at `now_s`, in addition to those in another node's response.

    The endpoint, its joules and the explanation are those of the node where the request started. The other
    endpoints are ranked only if the response shows them, as JSON text, because parameters are scalars.
    """
    found, reply = dict[str, object](), answer.content
    if isinstance(reply, Reply):
        if reply.accuracy is not None:
            found["accuracy"] = reply.accuracy
        if reply.cut is not None:
            found["cut"] = reply.cut
    if asked.is_source:
        found["endpoint"] = answer.endpoint
        if answer.energy_j is not None:
            found["energy_j"] = answer.energy_j
    if (met := asked.pending.met(now_s)) is not None:
        found["met"] = met
    if asked.request.explains:
        found["reason"], found["hedged"] = answer.choice.reason, answer.is_hedged
        if answer.unused is not None:
            found["unused_s"] = answer.unused.seconds
            if answer.unused.joules is not None:
                found["unused_j"] = answer.unused.joules
    if asked.shows_endpoints:
        rows = explain_answer(router, asked.pending.length, answer.choice, now_s, memory_of)
        found["endpoints"] = _ENCODER.encode(rows).decode()
    return found
