"""The feed of a node: nothing while nobody looks, and a bounded number of answers while somebody does."""

import asyncio
import gc

from pliant.ir.curve import Curve
from pliant.ir.endpoint import ServiceLevel
from pliant.ir.reply import Reply
from pliant.route.choice.candidate import Candidate
from pliant.route.choice.choose_endpoint import choose
from pliant.route.node_messages import NodeTime
from pliant.serve.answers.routed_request import RoutedAnswer, RoutedRequest
from pliant.serve.page.answer_feed import N_EVENTS, N_RECORDS, AnswerFeed, CandidateEstimate
from tests.serve.answers.dispatch_fakes import inquiry


def reply(seconds: float = 0.01, target_s: float | None = None) -> Reply[None]:
    return Reply({}, "upper", seconds, None, 3, target_s=target_s)


def test_nothing_is_kept_while_nobody_looks() -> None:
    """An answer of before the first viewer is nobody's business."""
    feed = AnswerFeed()
    feed.record_reply(reply())
    assert feed.last == 0
    with feed.viewed():
        feed.record_reply(reply())
        assert [event.number for event in feed.events_since(0)] == [1]
    assert feed.events_since(0) == []
    assert feed.find_record(1) is None


def test_what_one_viewer_leaves_another_keeps() -> None:
    """Two pages may be open, and the first be closed."""
    feed = AnswerFeed()
    with feed.viewed():
        with feed.viewed():
            feed.record_reply(reply())
        assert feed.last == 1
        assert feed.find_record(1) is not None


def test_a_reader_gets_what_came_since_and_misses_what_is_too_old() -> None:
    """The feed is bounded, however slow a reader is."""
    feed = AnswerFeed()
    with feed.viewed():
        for _ in range(N_EVENTS + 10):
            feed.record_reply(reply())
        assert [event.number for event in feed.events_since(feed.last - 2)] == [N_EVENTS + 9, N_EVENTS + 10]
        assert feed.events_since(feed.last) == []
        kept = feed.events_since(0)
        assert (len(kept), kept[0].number) == (N_EVENTS, 11)
        assert feed.find_record(feed.last - N_RECORDS) is None
        assert feed.find_record(feed.last - N_RECORDS + 1) is not None


def test_texts_are_kept_only_where_that_was_asked_for() -> None:
    """What people ask is not shown to whoever looks at a page."""
    for keeps in (False, True):
        feed = AnswerFeed(keeps_texts=keeps)
        with feed.viewed():
            feed.record_reply(reply(), "a secret")
            record = feed.find_record(1)
            assert record is not None
            assert record.text == ("a secret" if keeps else None)


def test_an_event_says_whether_the_target_was_kept() -> None:
    """Late and in time are told apart, and neither is said where nothing was asked."""
    feed = AnswerFeed()
    with feed.viewed():
        for seconds, target_s in ((0.2, 0.1), (0.05, 0.1), (0.2, None)):
            feed.record_reply(reply(seconds, target_s))
        assert [event.met for event in feed.events_since(0)] == [False, True, None]


def routed_answer() -> RoutedAnswer:
    """By the first of two endpoints whose curves were just fitted."""
    levels = [(ServiceLevel(Curve(((0, s),)), bound=Curve(((0, 2 * s),))),) for s in (0.01, 0.02)]
    choice = choose(1, [Candidate("local", levels[0], fixed_s=0.005), Candidate("away", levels[1])])
    return RoutedAnswer(reply(0.02), "local", "me", NodeTime(0.02), choice)


async def record_requests(feed: AnswerFeed, n: int) -> None:
    async def answer(_: RoutedRequest) -> RoutedAnswer:
        return routed_answer()

    for _ in range(n):
        await feed.record_request(inquiry(None), answer)


def test_a_record_has_the_numbers_of_the_choice() -> None:
    """They are all that the page shows of it: every endpoint, the chosen one first."""
    feed = AnswerFeed()
    with feed.viewed():
        asyncio.run(record_requests(feed, 1))
        record = feed.find_record(1)
    assert record is not None
    assert record.route is not None
    assert record.route.reason == routed_answer().choice.reason
    assert record.route.work_s == 0.01
    assert record.route.candidates == (
        CandidateEstimate("local", 0.015, 0.025, None, None),
        CandidateEstimate("away", 0.02, 0.04, None, None),
    )


def test_kept_answers_give_the_collector_little_to_visit() -> None:
    """Each kept answer once held the curves of all endpoints; visiting them was most of a page's cost."""
    feed = AnswerFeed()
    with feed.viewed():
        asyncio.run(record_requests(feed, 2))
        gc.collect()
        before = len(gc.get_objects())
        asyncio.run(record_requests(feed, N_RECORDS - 2))
        gc.collect()
        gc.collect()  # a tuple of what is not visited is left out only after it was visited itself
        assert feed.find_record(1) is not None
        assert len(gc.get_objects()) - before < 3 * N_RECORDS
