"""The page of a session that answers by itself, as `pliant run --page` has it."""

import httpx

from pliant.serve.node.start_node import NodeOptions
from pliant.serve.page.session_page import session_page
from tests.serve.models import Upper, texts
from tests.serve.nodes import Running
from tests.serve.page.test_page_routes import events


def test_answers_of_a_session_are_on_its_page() -> None:
    """They pass no node; the page ends with the context, and the session with it."""
    session = Upper()
    with session_page(session, NodeOptions(version="0", name="here", settle_s=0.0)) as page:
        with events(Running(page.url)) as told:
            assert next(told)[0] == "picture"
            page.feed.record_reply(session.answer(session.request({"text": texts("a film")})))
            (batch,) = next(value for name, value in told if name == "answers")
            assert batch["answers"][0][2:5] == [6, "local", "ok"]
        assert httpx.get(page.url).status_code == 200
    assert session.is_closed
