"""The page in a real Chromium, at a node that falls silent, comes back, or does not answer."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.serve.page.chromium import Chromium, Tab
from tests.serve.page.scripted_node import ScriptedNode, answers, numbers, picture, scripted_node
from tests.serve.test_routing import until

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
    until(lambda: len(node.connections) == 1)
    node.send("picture", picture("a"))
    node.send("numbers", numbers(100.0))
    tab.until("document.querySelectorAll('#figures div').length > 0")
    yield tab
    tab.close()


def test_a_node_that_falls_silent_is_shown_as_lost_and_tried_again(browser: Chromium) -> None:
    """A node without power closes no connection; numbers come every second from one that has it."""
    quick = {"const QUIET_MS = 5000": "const QUIET_MS = 300"}
    with scripted_node(quick) as node, page(browser, node) as tab:
        until(lambda: len(node.connections) == 2)
        tab.until(f"{STATE} === 'live'")


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


def test_figures_of_the_last_minute_begin_after_a_gap(browser: Chromium) -> None:
    """What was answered while the page had no contact is not known: the rate would be too low."""
    with scripted_node(QUICK) as node, page(browser, node) as tab:
        node.send("answers", answers(0.25))
        tab.until(f"{figure('Median')} === '250'")
        node.end()
        until(lambda: len(node.connections) == 2)
        node.send("picture", picture("a"))
        node.send("numbers", numbers(101.0))
        tab.until(f"{figure('Median')} === '–'")
        node.send("answers", answers(0.25, 0.5))
        tab.until(f"{figure('Median')} === '500'")


def test_a_restart_is_not_shown_as_negative_use_of_the_processor(browser: Chromium) -> None:
    """A new process counts its time from 0."""
    with scripted_node(QUICK) as node, page(browser, node) as tab:
        node.send("numbers", numbers(100.5, after_s=1.0))
        tab.until(f"{figure('Processor')} !== '–'")
        assert 0 < int(tab.run(figure("Processor"))) <= 51
        node.end()
        until(lambda: len(node.connections) == 2)
        node.send("picture", picture("b"))
        node.send("numbers", numbers(0.5, after_s=2.0, rss_bytes=2))
        tab.until(f"{figure('Memory')} === '2'")
        assert tab.run(figure("Processor")) == "–"
        node.send("numbers", numbers(1.0, after_s=3.0))
        tab.until(f"{figure('Processor')} !== '–'")
        assert int(tab.run(figure("Processor"))) > 0
