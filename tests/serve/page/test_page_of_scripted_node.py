"""The page in a real Chromium, at a node that falls silent, comes back, or does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.serve.page.chromium import Chromium, Tab
from tests.serve.page.scripted_node import ScriptedNode, answers, numbers, picture, scripted_node

STATE = "document.querySelector('#state').textContent"
QUICK = {"const RETRY_MS = 2000": "const RETRY_MS = 10"}


def figure(name: str) -> str:
    """The script for a figure of the page."""
    names = "[...document.querySelectorAll('#figures div')]"
    return f"{names}.find(one => one.firstChild.textContent === '{name}').lastChild.firstChild.textContent"


@contextmanager
def page(browser: Chromium, node: ScriptedNode) -> Iterator[Tab]:
    """The page once it shows the first numbers."""
    tab = browser.tab()
    tab.open(node.url)
    node.send("picture", picture("a"))
    node.send("numbers", numbers(100.0))
    tab.until("document.querySelectorAll('#figures div').length > 0")
    yield tab
    tab.close()


def test_a_node_that_falls_silent_is_shown_as_lost_and_tried_again(browser: Chromium) -> None:
    """A node without power closes no connection; numbers come every second from one that has it."""
    quick = QUICK | {"const QUIET_MS = 5000": "const QUIET_MS = 300"}
    with scripted_node(quick) as node, page(browser, node) as tab:
        n = node.n_opened
        tab.until(f"{STATE} === 'no contact; trying again'")
        node.end()  # of the connection that the page has left
        node.send("picture", picture("a"))
        tab.until(f"{STATE} === 'live'")
        assert node.n_opened > n


def test_a_question_without_an_answer_is_not_asked_again_meanwhile(browser: Chromium) -> None:
    """Else each round leaves a request behind, until the browser has no connection left."""
    quick = {"const OUTLOOK_MS = 2000": "const OUTLOOK_MS = 1"}
    step = "(function next() { n-- ? requestAnimationFrame(next) : done(1) })()"
    frames = f"new Promise(done => {{ let n = 20; {step} }})"
    with scripted_node(quick) as node, page(browser, node) as tab:
        node.send("answers", answers(0.01))
        tab.until("document.querySelectorAll('#latest tr').length === 1")
        tab.run(frames)
        assert len(node.asked) <= 3  # one when the model was chosen, and two of one round
    soon = quick | {"const ASK_MS = 5000": "const ASK_MS = 50"}
    with scripted_node(soon) as node, page(browser, node) as tab:
        while len(node.asked) < 6:  # it gives up, and asks again
            tab.run(frames)
