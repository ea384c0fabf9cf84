"""What a node counts, by model and endpoint, compared with what its clients saw."""

import httpx
import pytest

from tests.serve.models import Upper
from tests.serve.node.test_several_models import asked
from tests.serve.nodes import PATIENCE_S, asking, fixed, running
from tests.serve.test_routing import LATE, SOON, metric, target_of, until


def test_every_metric_of_requests_names_its_model() -> None:
    """Also where there is but one: a dashboard serves any number."""
    with running(Upper("first"), (Upper("second", identity="id-2"),)) as node:
        asked(node, "second", "ab")
        text = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
        assert metric(node, 'pliant_requests_total{model="second",outcome="ok"}') == 1
        assert metric(node, 'pliant_requests_total{model="first",outcome="ok"}') == 0
    with running(Upper()) as node:
        alone = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
    for line in (*text.splitlines(), *alone.splitlines()):
        assert line.startswith(("#", "process_")) or 'model="' in line, line


def test_hedges_start_at_zero() -> None:
    """A rate needs a sample before the first event."""
    with running(Upper(), name="up") as up, running(Upper(), name="end", upstreams=(up.url,)) as end:
        text = httpx.get(f"{end.url}/metrics", timeout=PATIENCE_S).text
        rows = [line for line in text.splitlines() if line.startswith("pliant_hedges_total{")]
        for target in ("local", up.url):
            for answered in ("there", "here", "none"):
                (row,) = (one for one in rows if f'"{answered}"' in one and f'"{target}"' in one)
                assert row.endswith(" 0.0")
        assert 'pliant_unused_seconds_total{cause="hedge",' in text


def test_the_process_is_measured_once_however_many_models() -> None:
    with running(Upper("first"), (Upper("second", identity="id-2"),)) as node:
        text = httpx.get(f"{node.url}/metrics", timeout=PATIENCE_S).text
        assert metric(node, "process_resident_memory_bytes") > 1e6
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        assert sum(line.startswith(f"{name} ") for line in text.splitlines()) == 1, name


def test_bytes_of_clients_and_upstreams_are_counted() -> None:
    with (
        running(Upper(mark="@up"), name="up", **fixed(*SOON)) as up,
        running(Upper(mark="@end"), name="end", upstreams=(up.url,), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 3) == up.url)
        answers = [end.post(text) for text in ("a", "bc", "def")]
        n_in = sum(len(asking(text)) for text in ("a", "bc", "def"))
        n_out = sum(len(answer.content) for answer in answers)
        for direction, n in (("in", n_in), ("out", n_out)):
            line = f'pliant_client_bytes_total{{direction="{direction}",target="{up.url}"}}'
            assert metric(end, line) == n
            assert metric(up, f'pliant_client_bytes_total{{direction="{direction}",target="local"}}') > 0
        assert metric(end, f'pliant_upstream_bytes_total{{direction="out",upstream="{up.url}"}}') > n_in
        assert metric(end, f'pliant_upstream_bytes_total{{direction="in",upstream="{up.url}"}}') > n_out


@pytest.mark.parametrize(
    ("parameters", "outcome"),
    [
        ({"deadline_s": 60}, "met"),
        ({"deadline_s": 1e-6, "best_effort": True}, "late"),
        ({"deadline_s": 1e-6}, "refused"),
        ({"accuracy_floor": 0.9}, "refused"),
        ({}, None),
    ],
)
def test_attainment_counts_requests_that_asked_for_something(
    parameters: dict[str, object], outcome: str | None
) -> None:
    """A request without a deadline or a floor cannot miss it."""
    with running(Upper(), **fixed((0, 0.01))) as node:
        answer = node.post("a") if not parameters else asked(node, "upper", "a", parameters=parameters)
        assert (answer.status_code == 200) == (outcome in ("met", "late", None)), answer.text
        every = ("met", "late", "ok", "refused", "failed", "cancelled")
        counted = {
            one: metric(node, f'pliant_attainment_total{{outcome="{one}",target="local"}}') for one in every
        }
    assert counted == {one: float(one == outcome) for one in every}


def test_counters_of_an_upstream_start_at_0_and_go_with_it() -> None:
    """A rate needs a sample before the first event; nodes that come and go would leave a line each."""
    with (
        running(Upper(mark="@up"), name="up", **fixed(*SOON)) as up,
        running(Upper(mark="@end"), name="end", upstreams=(up.url,), **fixed(*LATE)) as end,
    ):
        text = httpx.get(f"{end.url}/metrics", timeout=PATIENCE_S).text
        for name in ("requests", "attainment", "client_bytes", "upstream_bytes", "fallbacks", "mismatches"):
            assert any(
                line.startswith(f"pliant_{name}_total{{") and f'="{up.url}"' in line
                for line in text.splitlines()
            ), name
        assert end.node is not None
        assert end.node.upstreams is not None
        assert end.loop is not None
        end.loop.call_soon_threadsafe(end.node.upstreams.remove, up.url)
        until(lambda: up.url not in httpx.get(f"{end.url}/metrics", timeout=PATIENCE_S).text)
