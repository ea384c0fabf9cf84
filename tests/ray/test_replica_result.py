"""What becomes of a request whose replica dies, without Ray around it."""

import asyncio
import json
import warnings
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
with warnings.catch_warnings():  # of pydantic, about Ray's models
    warnings.simplefilter("ignore")
    from ray.exceptions import ActorDiedError, RayActorError
    from ray.serve._private.common import DeploymentID, RequestMetadata
    from ray.serve.request_router import PendingRequest, ReplicaID

from pliant.ray.replica_result import ReplicaLostError, RetriedResult, StreamedResult

REPLICA = ReplicaID("one", DeploymentID("pliant"))


@dataclass(frozen=True)
class Said:
    accepted: bool
    num_ongoing_requests: int = 3


class Result:
    """As Ray gives one: what the replica said, and its answer or its end, in parts of a stream too."""

    def __init__(self, said: Said, *answers: Any) -> None:
        self.said, self.answers = said, list(answers)

    async def get_rejection_response(self) -> Said:
        return self.said

    async def get_async(self) -> Any:
        return self.given()

    async def __anext__(self) -> Any:
        return self.given()

    def given(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Queues:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.rejected: list[str] = []
        self.said: list[int] = []

    def on_rejected(self, pending: Any, replica_id: Any) -> None:
        self.rejected.append(pending.metadata.internal_request_id)

    def on_new_queue_len_info(self, replica_id: Any, num_ongoing_requests: int) -> None:
        self.said.append(num_ongoing_requests)

    def ongoing(self, replica_id: Any) -> int:
        return 7


async def _repeated(result: Any, queues: Any, lost: set[str]) -> RetriedResult:
    return RetriedResult(
        result, PendingRequest(["text"], {}, RequestMetadata("r", "i")), REPLICA, queues, lost
    )


def test_a_request_is_sent_to_a_second_replica_and_to_no_third() -> None:
    """Serve sends it anew where the end of a replica is told as a refusal; the second end is its answer."""
    lost: set[str] = set()

    async def run() -> None:
        for _ in range(2):
            result = Result(Said(True), ActorDiedError())
            if not lost:
                with pytest.raises(ActorDiedError):
                    await (await _repeated(result, Queues(), lost)).get_rejection_response()
                assert lost == {"i"}
                continue
            answer = await _repeated(result, Queues(), lost)
            assert await answer.get_rejection_response() == Said(True)
            with pytest.raises(ActorDiedError):
                await answer.get_async()

    asyncio.run(run())
    assert lost == set()


def test_answers_and_refusals_of_the_model_are_given_on() -> None:
    """What a replica raises is its answer. The length of its queue counts once it is told."""

    async def run(answer: Any) -> tuple[RetriedResult, Queues, Any]:
        queues = Queues()
        repeated = await _repeated(Result(Said(True), answer), queues, set())
        return repeated, queues, await repeated.get_rejection_response()

    repeated, queues, said = asyncio.run(run("fine"))
    assert (asyncio.run(repeated.get_async()), queues.said, said) == ("fine", [3], Said(True, 7))
    repeated, queues, said = asyncio.run(run(ValueError("no such input")))
    assert said == Said(True, 7)
    with pytest.raises(ValueError, match="no such input"):
        asyncio.run(repeated.get_async())


def test_a_full_replica_has_had_no_request() -> None:
    """The router counts it at another from then on."""
    queues = Queues()

    async def run() -> Any:
        return await (await _repeated(Result(Said(False)), queues, set())).get_rejection_response()

    assert (asyncio.run(run()), queues.rejected) == (Said(False), ["i"])


def test_over_http_a_lost_request_is_to_be_asked_again() -> None:
    """By its client, who has the body; once an answer has begun it cannot be taken back."""
    streamed = StreamedResult(Result(Said(True), ActorDiedError()), lambda: 1.0)
    with pytest.raises(ReplicaLostError) as refused:
        asyncio.run(streamed.__anext__())
    assert (refused.value.status_code, refused.value.retry_after_s) == (503, 1.0)
    assert json.loads(refused.value.message) == {"error": str(refused.value)}

    async def run() -> None:
        begun = StreamedResult(Result(Said(True), "head", ActorDiedError()), lambda: 1.0)
        assert await begun.__anext__() == "head"
        with pytest.raises(RayActorError):
            await begun.__anext__()

    asyncio.run(run())
