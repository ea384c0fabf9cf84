"""Upstreams that join and leave a node that runs."""

from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import httpx
import pytest

from pliant.cluster.lead.status_report import ClusterStatus, MemberStatus
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, fixed, running
from tests.serve.test_routing import HONEST, LATE, answer_of, target_of, until

OPERATOR, CLIENT, PEER = "operator-token-01", "client-token-0123", "peer-token-012345"


def peers(node: Running, changes: object = None, token: str | None = OPERATOR) -> httpx.Response:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    url = f"{node.url}/v2/pliant/peers"
    if changes is None:
        return httpx.get(url, headers=headers, timeout=PATIENCE_S)
    return httpx.post(url, json=changes, headers=headers, timeout=PATIENCE_S)


def below(**options: Any) -> Any:
    return running(Upper(mark="@end"), name="end", operator_tokens=(OPERATOR,), **{**fixed(*LATE), **options})


def test_an_upstream_that_joins_is_used_and_one_that_leaves_is_not() -> None:
    """Nobody restarts anything, and both calls may be repeated."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up, below() as end:
        assert answer_of(end, "x") == "X@end"
        assert peers(end).json() == {"upstreams": [], "predecessors": [], "workers": []}
        for _ in range(2):
            assert peers(end, {"add": [up.url + "/"]}).status_code == 200
        until(lambda: target_of(end, 400) == up.url)
        (known,) = peers(end).json()["upstreams"]
        assert 0.0 <= known.pop("heard_s_ago") < PATIENCE_S, (
            "an idle upstream that died stays ready for a while"
        )
        assert known == {"url": up.url, "node": "up", "state": "ready", "reason": None, "is_found": False}
        assert answer_of(end, "x" * 400) == "X" * 400 + "@up"
        until(lambda: peers(end).json()["upstreams"][0]["state"] == "ready")
        for _ in range(2):
            assert peers(end, {"remove": [up.url]}).json()["upstreams"] == []
        assert answer_of(end, "x" * 400) == "X" * 400 + "@end"
        assert target_of(end, 400) == "local"


def test_no_request_is_lost_while_upstreams_come_and_go() -> None:
    """Threads ask all the while; each gets one answer, from one of the two."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up, below() as end:

        def ask(i: int) -> str:
            if i % 10 == 3:
                assert peers(end, {"add": [up.url]}).status_code == 200
            if i % 10 == 8:
                assert peers(end, {"remove": [up.url]}).status_code == 200
            return answer_of(end, f"{i}:" + "x" * 400)

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, range(120)))
        for i, answer in enumerate(answers):
            text = f"{i}:" + "X" * 400
            assert answer in (text + "@up", text + "@end")


def test_only_an_operator_changes_or_reads_the_upstreams() -> None:
    """An upstream sees every input that is passed on to it."""
    with below(tokens=(CLIENT,), peer_tokens=(PEER,)) as end:
        for token, status in ((None, 401), (CLIENT, 403), (PEER, 403), (OPERATOR, 200)):
            assert peers(end, None, token).status_code == status
            assert peers(end, {"add": []}, token).status_code == status
    with running(Upper(), name="open", **fixed(*LATE)) as node:
        for token in (None, CLIENT, OPERATOR):
            assert peers(node, {"add": ["http://127.0.0.1:9"]}, token).status_code in (401, 403)


def test_a_path_with_a_line_break_behind_it_is_no_way_around_the_token() -> None:
    """Patterns of routes match before a last line break, and the guard compared whole paths."""
    with below(tokens=(CLIENT,), peer_tokens=(PEER,)) as end:
        for token in (CLIENT, PEER):
            for path in ("/v2/pliant/peers%0A", "/v2/pliant/curve%0A"):
                headers = {"authorization": f"Bearer {token}"}
                response = httpx.get(f"{end.url}{path}", headers=headers, timeout=PATIENCE_S)
                assert response.status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"add": ["gateway:8080"]},
        {"add": ["http://a/path"]},
        {"add": "http://a"},
        {"added": ["http://a"]},
        {"add": ["http://a:1"], "remove": ["http://a:1/"]},
        {"add": [f"http://a:{i}" for i in range(1, 300)]},
        [],
    ],
)
def test_changes_that_cannot_be_are_refused_whole(changes: object) -> None:
    """Half of them would leave a node that nobody asked for."""
    with below() as end:
        mixed = {"add": ["http://127.0.0.1:9"], **changes} if isinstance(changes, dict) else changes
        for asked in (changes, mixed):
            response = peers(end, asked)
            assert response.status_code == 400
            assert response.json()["error"]
        assert peers(end).json()["upstreams"] == []


class Led(Upper):
    """A model on a cluster, as far as its workers go."""

    def __init__(self, *names: str) -> None:
        super().__init__(mark="@end")
        self.names, self.dismissed = names, set[str]()

    def status(self) -> ClusterStatus:
        heard_s = {"silent": inf}
        members = tuple(
            MemberStatus(
                name,
                name not in self.dismissed,
                "dismissed" if name in self.dismissed else None,
                heard_s.get(name, 0.5),
                free_bytes=0,
                n_threads=1,
                models=(),
                n_faults=2,
            )
            for name in self.names
        )
        return ClusterStatus("end", "0", "zmq", members)

    def dismiss(self, name: str) -> None:
        self.dismissed.add(name)

    def readmit(self, name: str) -> None:
        self.dismissed.discard(name)


def test_workers_are_listed_removed_and_taken_back() -> None:
    """By the same calls as upstreams, and all of a call or nothing."""
    served = Led("hub", "silent")
    with running(served, operator_tokens=(OPERATOR,)) as node:
        hub, silent = peers(node).json()["workers"]
        assert hub == {"name": "hub", "is_usable": True, "reason": None, "heard_s_ago": 0.5, "n_faults": 2}
        assert silent["heard_s_ago"] is None
        for _ in range(2):
            found = peers(node, {"remove_workers": ["hub"]}).json()["workers"]
            assert [worker["is_usable"] for worker in found] == [False, True]
        for wrong in (
            {"remove_workers": ["nobody"], "add_workers": ["hub"]},
            {"remove_workers": ["hub"], "add_workers": ["hub"]},
            {"add_workers": ["hub"], "add": ["ftp://a"]},
        ):
            assert peers(node, wrong).status_code == 400
            assert served.dismissed == {"hub"}
        assert peers(node, {"add_workers": ["hub"]}).json()["workers"][0]["is_usable"]
        assert peers(node, {"remove_workers": ["hub"]}, None).status_code == 403
    with below() as end:
        refused = peers(end, {"remove_workers": ["hub"], "add": ["http://127.0.0.1:9"]})
        assert refused.status_code == 400
        assert peers(end).json()["upstreams"] == []


def test_nothing_is_kept_of_an_upstream_that_was_removed() -> None:
    """Nodes come and go under new addresses for months."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up, below() as end:
        for url in (up.url, "http://127.0.0.1:9"):
            assert peers(end, {"add": [url]}).status_code == 200
            until(lambda url=url: url in metrics_of(end))
            assert peers(end, {"remove": [url]}).status_code == 200
            until(lambda url=url: url not in metrics_of(end))


def metrics_of(node: Running) -> str:
    return httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
