"""W3C trace context, by the examples and rules of its specification."""

import pytest

from pliant.serve.telemetry.trace_context import TraceContext, new_trace, read_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_the_example_of_the_specification_is_read_and_written() -> None:
    given = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "congo=t61rcWkgMzE"}
    found = read_trace(given)
    assert found == TraceContext(TRACE, SPAN, True, "congo=t61rcWkgMzE")
    assert found.headers() == given


def test_a_child_has_a_span_of_its_own_in_the_same_trace() -> None:
    parent = TraceContext(TRACE, SPAN, True, "a=b")
    child = parent.child()
    assert (child.trace_id, child.is_sampled, child.state) == (TRACE, True, "a=b")
    assert child.span_id != SPAN
    assert read_trace(child.headers()) == child


@pytest.mark.parametrize(
    "given",
    [
        "",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01,00-{TRACE}-{SPAN}-01",
    ],
)
def test_a_traceparent_that_cannot_be_begins_a_new_trace(given: str) -> None:
    """Section 3.2.2: it is not repaired, and its tracestate goes with it."""
    assert read_trace({"traceparent": given, "tracestate": "a=b"}) is None


def test_a_later_version_is_read_by_what_it_shares_with_this_one() -> None:
    found = read_trace({"traceparent": f"cc-{TRACE}-{SPAN}-01-what-the-future-has"})
    assert found == TraceContext(TRACE, SPAN, True)


def test_a_tracestate_that_could_break_a_header_is_dropped() -> None:
    for state in ("a=b\r\nx: y", "a" * 513, "ä=b"):
        found = read_trace({"traceparent": f"00-{TRACE}-{SPAN}-00", "tracestate": state})
        assert found == TraceContext(TRACE, SPAN, False)


def test_new_traces_differ() -> None:
    assert len({new_trace().trace_id for _ in range(100)}) == 100
