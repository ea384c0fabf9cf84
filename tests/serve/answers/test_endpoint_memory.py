"""What an explanation says of the memory of each endpoint."""

from typing import Any

import msgspec

from pliant.cluster.lead.status_report import ClusterStatus, MemberStatus, PlanStatus
from pliant.ir.partition import Partition, Share
from pliant.route.choice.objective import TIME
from pliant.route.choice.request_terms import Terms
from pliant.run.memory_use import MemoryNeed
from pliant.run.process_memory import MemoryBudget
from pliant.run.reservation import Reservation
from pliant.serve.answers.endpoint_memory import DeviceMemory, EndpointMemory, endpoint_memory
from pliant.serve.answers.explain_choice import Explanation, explain
from tests.plan.splits import bert
from tests.route.routers import router
from tests.serve.models import Upper

N_LAYERS, N_HEADS, HIDDEN, FFN = 2, 4, 32, 64


class SplitModel:
    spec, identity = bert(HIDDEN, N_HEADS, FFN, N_LAYERS), "split"


class Split(Upper):
    """A cluster's session on `hub` and `a`, of which `b` is excluded; it ran `plan` last."""

    def __init__(self, plan: PlanStatus | None) -> None:
        super().__init__()
        self.encoder, self._plan = SplitModel(), plan

    def need(self, length: int, accuracy: float | None = None) -> MemoryNeed:
        return MemoryNeed(7, 9)

    def status(self) -> ClusterStatus:
        members = [
            MemberStatus(name, reason is None, reason, 0.0, 1000, 1, (), 0)
            for name, reason in (("a", None), ("b", "not heard"))
        ]
        return ClusterStatus("hub", "1", "tcp", tuple(members), self._plan)


def test_the_memory_of_a_cluster_is_that_of_its_devices() -> None:
    """A worker with one of four heads and a quarter of the FFN holds a quarter of all matrices."""
    shares = (Share("hub", 3, 4, 48), Share("a", 1, 4, 16))
    ran = PlanStatus("split", Partition("1d", "hub", shares, 8))
    memory = endpoint_memory(Split(ran), 8, None)
    hub, a = memory.devices
    assert hub == DeviceMemory("hub", 7, None, 9)
    matrices = N_LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN) * 4
    vectors = N_LAYERS * (9 * HIDDEN + FFN) * 4  # of biases and norms, which devices may all hold
    assert a.held_bytes is not None
    assert 0 <= a.held_bytes - matrices // 4 <= vectors
    assert a.free_bytes == 1000
    assert str(memory).startswith("memory of hub 7 B held of 9 B, a ")
    for other in (None, PlanStatus("another", ran.partition)):
        assert endpoint_memory(Split(other), 8, None).devices[1] == DeviceMemory("a", None, 1000)


def test_an_explanation_says_what_an_endpoint_holds_and_loads() -> None:
    """`--memory 8MB` showed no bytes at all; nodes of earlier releases still do not."""
    memory = EndpointMemory(7_000_000, 8_000_000, 3_000_000)
    found = explain(router("http://up:1"), 5, TIME, Terms(), 1.0, lambda name, n, accuracy: memory)
    assert "memory 7 MB held of 8 MB, an answer loads 3 MB" in str(found).splitlines()[1]
    told: Any = msgspec.to_builtins(found)
    assert msgspec.convert(told, Explanation) == found
    assert "memory" not in str(found).splitlines()[2], "an upstream tells no bytes"
    for row in told["candidates"]:
        del row["memory"]
    assert msgspec.convert(told, Explanation).candidates[0].memory is None
    assert str(EndpointMemory(7_000_000, None, 0)) == "memory 7 MB held"


def test_a_reserved_share_shows_what_its_session_holds() -> None:
    """All of it was shown as held; a model without any, whose weights are mapped, was left out."""
    budget, served = MemoryBudget(100), Split(None)
    for n_bytes in (40, 0):
        reserved = Reservation("split")
        budget.reserve_fixed(reserved, n_bytes)
        reserved.use(served)
        (share,) = budget.shares
        assert (share.share_bytes, share.held_bytes) == (n_bytes, 7)
        budget.release(reserved)
        del reserved, share
