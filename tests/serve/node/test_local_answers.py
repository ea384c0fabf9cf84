"""What a node's own answers tell its router."""

from concurrent.futures import ThreadPoolExecutor

from pliant.ir.endpoint import Estimate, Request
from tests.serve.models import Upper
from tests.serve.nodes import fixed, running
from tests.serve.test_routing import until


class Slow(Upper):
    """It says that an answer takes a second."""

    def estimate(self, request: Request) -> Estimate:
        return Estimate(1.0, None)


def test_a_queue_that_drained_is_not_told_as_a_wait() -> None:
    """The wait was noted when a request came, not when one left: after a burst, an idle node told nodes below
    of a queue that was gone, and they answered themselves, seconds after, more slowly."""
    served = Slow()
    with (
        running(served, **fixed((0, 1.0), (1000, 1.0), wait_memory_s=1e-9)) as run,
        ThreadPoolExecutor(3) as clients,
    ):
        node = run.node
        assert node is not None
        served.gate.clear()
        answers = [clients.submit(run.post, "text") for _ in range(3)]
        until(lambda: node.local.backlog_s > 2.0)
        served.gate.set()
        assert all(answer.result().status_code == 200 for answer in answers)
        until(lambda: node.n_open == 0)
        assert node.router.tell(node.clock()).wait_s == 0.0
