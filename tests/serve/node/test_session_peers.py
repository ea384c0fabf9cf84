"""Peers of a Python session at run time, as operators of a node change them."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.curve import Curve
from pliant.ir.endpoint import Request, ServiceLevel
from pliant.run.session.text_feeds import AnswerArrays
from pliant.serve.node.peers import MOST_UPSTREAMS
from pliant.serve.node.routed_session import RoutedSession
from pliant.serve.node.routing import Routing
from pliant.serve.upstream.upstreams import Upstreams
from tests.serve.models import Upper, texts
from tests.serve.node.test_peers import Led
from tests.serve.nodes import PATIENCE_S, fixed, running
from tests.serve.test_routing import HONEST, LATE, until

UNUSED = "http://127.0.0.1:9"


class Reads(Upper):
    """A text that a session forwards as a text."""

    def request(self, feeds: AnswerArrays) -> Request:
        return replace(super().request(feeds), text=feeds["text"][0].decode())


def session_of(local: Upper, cluster: Upper | None = None, **options: object) -> RoutedSession:
    """A session that prefers upstreams of `HONEST` times to itself, and itself to its cluster."""
    for one, points in ((local, LATE), (cluster, ((0, 1000.0),))):
        if one is not None:
            levels = (ServiceLevel(Curve(points)),)
            one.levels = lambda levels=levels: levels  # type: ignore[method-assign,misc]
    routing = Routing(settings=fixed(*LATE)["routing"])
    return RoutedSession(local, cluster, routing=routing, **options)  # type: ignore[arg-type]


def below() -> RoutedSession:
    return session_of(Reads(mark="@end"))


def answer_of(session: RoutedSession, text: str) -> str:
    word: bytes = session({"text": texts(text)}).outputs["upper"][0]
    return word.decode()


def test_an_upstream_that_a_session_adds_is_used_and_one_that_it_removes_is_not() -> None:
    """Nobody opens the model again, and both calls may be repeated."""
    with running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up, below() as session:
        assert session.list_peers().upstreams == ()
        assert answer_of(session, "x") == "X@end"
        for _ in range(2):
            assert [one.url for one in session.change_peers(add=[up.url + "/"]).upstreams] == [up.url]
        until(lambda: session.list_peers().upstreams[0].state == "ready")
        (known,) = session.list_peers().upstreams
        assert (known.url, known.node, known.reason, known.is_found) == (up.url, "up", None, False)
        assert answer_of(session, "x") == "X@up"
        for _ in range(2):
            assert session.change_peers(remove=(up.url,)).upstreams == ()
        assert answer_of(session, "x") == "X@end"
        assert session.explain(1).target == "local"


def test_an_upstream_that_does_not_answer_is_listed_with_the_reason() -> None:
    """Requests are answered here meanwhile."""
    with below() as session:
        assert [one.url for one in session.change_peers(add={UNUSED}).upstreams] == [UNUSED]
        until(lambda: session.list_peers().upstreams[0].state == "down")
        (known,) = session.list_peers().upstreams
        assert (known.reason is not None, known.heard_s_ago) == (True, None)
        assert answer_of(session, "x") == "X@end"


def test_a_call_that_adds_an_upstream_waits_for_the_first_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the next request can use it, and the list says whether it answers; other calls do not wait."""
    waited = []

    async def first_contacts(upstreams: Upstreams, most_s: float = 0.0) -> None:
        waited.append(upstreams)

    with below() as session:
        monkeypatch.setattr(Upstreams, "first_contacts", first_contacts)
        session.change_peers(remove=[UNUSED])
        assert not waited
        session.change_peers(add=[UNUSED])
        assert len(waited) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"add": ["gateway:8080"]}, "gateway:8080.*http://HOST:PORT"),
        ({"add": UNUSED}, "cannot be read.*array"),
        ({"add": [9]}, "cannot be read.*str"),
        ({"add": [UNUSED], "remove": [UNUSED + "/"]}, "both added and removed"),
        (
            {"add": [f"http://a:{i + 1}" for i in range(MOST_UPSTREAMS + 1)]},
            f"{MOST_UPSTREAMS} upstreams at most",
        ),
        ({"add": [UNUSED], "remove_workers": ["hub"]}, "never joined.*--join"),
    ],
)
def test_changes_that_cannot_be_are_refused_whole(changes: dict[str, object], said: str) -> None:
    """With the reason, and the peers are as before."""
    with below() as session:
        with pytest.raises(InputError, match=said):
            session.change_peers(**changes)  # type: ignore[arg-type]
        assert session.list_peers().upstreams == ()
    with pytest.raises(InputError, match="closed"):
        session.list_peers()


def test_workers_of_a_sessions_cluster_are_listed_removed_and_taken_back() -> None:
    """By the names that they joined with."""
    cluster = Led("hub", "silent")
    with session_of(Reads(mark="@end"), cluster) as session:
        assert [(one.name, one.is_usable) for one in session.list_peers().workers] == [
            ("hub", True),
            ("silent", True),
        ]
        removed = session.change_peers(remove_workers=["hub"]).workers
        assert [one.is_usable for one in removed] == [False, True]
        with pytest.raises(InputError, match="both added and removed"):
            session.change_peers(add_workers=["hub"], remove_workers=["hub"])
        assert cluster.dismissed == {"hub"}
        assert session.change_peers(add_workers=["hub"]).workers[0].is_usable


def test_no_request_is_lost_while_a_thread_adds_and_removes_peers() -> None:
    """Eight threads ask, one adds and removes two upstreams and a worker in a loop, another lists them."""
    local, cluster = Reads(mark="@end"), Led("hub")
    is_over, is_above = threading.Event(), threading.Event()
    with (
        running(Upper(mark="@a"), name="a", **fixed(*HONEST)) as a,
        running(Upper(mark="@b"), name="b", **fixed(*HONEST)) as b,
        session_of(local, cluster) as session,
        ThreadPoolExecutor(10) as pool,
    ):

        def ask(k: int) -> Counter[str]:
            found = Counter[str]()
            while not is_over.is_set() or found.total() < 20:
                text = f"{k}:{found.total()}:" + "x" * 300
                reply = session({"text": texts(text)})
                word, _, mark = reply.outputs["upper"][0].decode().partition("@")
                assert word == text.upper()
                np.testing.assert_array_equal(reply.outputs["n"], [len(text)])
                found[mark] += 1
                if mark != "end":
                    is_above.set()
            return found

        def change() -> int:
            for i in range(20):
                added = session.change_peers(add=[a.url, b.url], remove_workers=["hub"])
                assert {one.url for one in added.upstreams} == {a.url, b.url}
                if i == 0:
                    assert is_above.wait(PATIENCE_S), "an upstream answers meanwhile"
                assert [one.is_usable for one in added.workers] == [False]
                gone, kept = (a, b) if i % 2 else (b, a)
                left = session.change_peers(remove=[gone.url], add_workers=["hub"])
                assert [one.url for one in left.upstreams] == [kept.url]
                assert session.change_peers(remove=[kept.url, UNUSED]).upstreams == ()
            return i + 1

        def read() -> int:
            n = 0
            while not is_over.is_set() or not n:
                assert {one.url for one in session.list_peers().upstreams} <= {a.url, b.url}
                n += 1
            return n

        asking, listed = [pool.submit(ask, k) for k in range(8)], pool.submit(read)
        try:
            assert pool.submit(change).result(2 * PATIENCE_S) == 20
        finally:
            is_over.set()
        answered = sum((one.result(PATIENCE_S) for one in asking), Counter[str]())
        assert listed.result(PATIENCE_S) > 0
        assert answered.keys() <= {"a", "b", "end"}
        assert answered["a"] + answered["b"] > 0
        ran_here = [text for text in local.answered if b":" in text]  # others are samples
        assert len(ran_here) == len(set(ran_here)) == answered["end"]
