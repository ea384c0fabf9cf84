"""A node that is told to leave answers what it has taken, and nothing is lost."""

import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.serve.models import Upper
from tests.serve.nodes import asking, running


def test_every_request_that_was_taken_is_answered() -> None:
    """Those that compute and those that wait: eight clients, one of which is being answered."""
    served = Upper()
    served.gate.clear()
    with running(served, settle_s=0.3) as node, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(node.post, f"text {i}") for i in range(8)]
        _until(lambda: node.node is not None and node.node.n_open == 8)
        node.stop()
        _until(lambda: httpx.get(f"{node.url}/v2/health/ready").status_code == 503)
        assert httpx.get(f"{node.url}/v2/health/live").status_code == 200
        served.gate.set()
        answers = [future.result() for future in waiting]
        node.join()
    assert [answer.json()["outputs"][0]["data"][0] for answer in answers] == [f"TEXT {i}" for i in range(8)]
    assert sorted(served.answered) == sorted(f"text {i}".encode() for i in range(8))
    assert served.is_closed


def test_a_node_that_leaves_asks_its_clients_to_go() -> None:
    """A connection that is kept would be cut between two requests."""
    with running(Upper(), settle_s=1.0) as node, httpx.Client(base_url=node.url) as client:
        assert "connection" not in client.get("/v2").headers
        node.stop()
        _until(lambda: node.node is not None and node.node.is_draining)
        response = client.post("/v2/models/upper/infer", content=asking("late"))
        assert response.status_code == 200
        assert response.headers["connection"] == "close"


def test_clients_that_ask_all_the_time_lose_nothing() -> None:
    """Until they cannot connect: each request that was sent on a connection is answered."""
    with running(Upper(), settle_s=0.5) as node, ThreadPoolExecutor(4) as pool:

        def client(number: int) -> int:
            n = 0
            with httpx.Client(base_url=node.url, timeout=30) as http:
                while True:
                    try:
                        response = http.post("/v2/models/upper/infer", content=asking(f"{number} {n}"))
                    except httpx.ConnectError:
                        return n
                    assert response.json()["outputs"][0]["data"] == [f"{number} {n}"]
                    n += 1

        asking_all = [pool.submit(client, number) for number in range(4)]
        time.sleep(0.3)
        node.stop()
        assert all(future.result() > 0 for future in asking_all)


def _until(holds: object) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("it never came to that")
