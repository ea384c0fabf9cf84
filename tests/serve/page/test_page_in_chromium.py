"""The page in a real Chromium, at nodes that are being asked."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import pliant
from pliant.api.open_encoder import open_encoder
from pliant.cluster.lead.open_member import MemberOptions, open_worker
from pliant.cluster.net.key import new_key
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.serve.page.event_stream import MOST_VIEWERS
from tests.cluster.processes import CONFIG, PATIENT, WAIT_S, small_model
from tests.run.conftest import paper_profile
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running, running_models
from tests.serve.page.chromium import Chromium, Tab
from tests.serve.repository.test_repository_api import Shelf

EVIL = "<img src=x onerror=window.hacked=1>"


@contextmanager
def page(browser: Chromium, url: str, *, width: int = 1280, **features: str) -> Iterator[Tab]:
    """The page of a node, once it is live; it asks nobody else, and nothing goes wrong in it."""
    tab = browser.tab()
    tab.emulate(width, 800, {name.replace("_", "-"): value for name, value in features.items()})
    tab.open(url)
    tab.until("document.querySelector('#state').textContent === 'live' && document.title.endsWith('pliant')")
    tab.until("document.querySelector('[data-key]') !== null")
    yield tab
    assert {re.match(r"https?://[^/]*", each)[0] for each in tab.requested} == {url}  # type: ignore[index]
    assert [one for one in tab.complaints if "400 (Bad Request)" not in one] == []
    tab.close()


@pytest.fixture
def node() -> Iterator[Running]:
    with running(Upper(), name="here", page_texts=True) as found:
        yield found


def figure(tab: Tab, name: str) -> int:
    return int(tab.run(f"document.querySelector('[data-key={name}] span').textContent").replace(",", ""))


def counted(node: Running, outcome: str) -> int:
    """What `/metrics` says of the model's requests."""
    samples = httpx.get(f"{node.url}/metrics").text.splitlines()
    found = [
        line.rpartition(" ")[2]
        for line in samples
        if line.startswith("pliant_requests_total{") and f'outcome="{outcome}"' in line
    ]
    return int(sum(map(float, found)))


def test_the_page_counts_as_metrics_do_and_shows_each_request(browser: Chromium, node: Running) -> None:
    """What was answered before somebody looked is in the counts, what comes then is seen one by one."""
    assert node.post("before").status_code == 200
    with page(browser, node.url) as tab:
        for i in range(12):
            body = asking("word " * (i + 1), parameters={"deadline_s": 5.0})
            assert httpx.post(f"{node.url}/v2/models/upper/infer", content=body).status_code == 200
        bug = asking("bug", parameters={"deadline_s": 5.0})
        assert httpx.post(f"{node.url}/v2/models/upper/infer", content=bug).status_code == 500
        answered, failed = counted(node, "ok"), counted(node, "failed")
        assert (answered, failed) == (13, 1)
        tab.until(f"document.querySelector('[data-key=answered] span').textContent === '{answered}'")
        tab.until(f"document.querySelector('[data-key=failed] span').textContent === '{failed}'")
        assert figure(tab, "refused") == counted(node, "refused") == 0
        tab.until("document.querySelectorAll('#latest tr').length === 10")
        lengths = tab.run("[...document.querySelectorAll('#latest tr')].map(row => row.cells[2].textContent)")
        assert lengths == ["3", *(str(5 * i) for i in range(12, 3, -1))]
        assert tab.run("document.querySelector('#latest tr').cells[3].textContent") == "failed"
        tab.until("document.querySelector('#attained-what').textContent === '92.3 % of 13 in time'")
        row = tab.run("[...document.querySelector('#endpoints tbody tr').cells].map(c => c.textContent)")
        assert row[:3] == ["local", "12", "100.0 %"]
        inked = "(() => { const c = document.querySelector('#points'); return c.getContext('2d')"
        assert tab.run(f"{inked}.getImageData(0, 0, c.width, c.height).data.some(v => v) }})()")


def test_what_others_name_is_shown_as_text(browser: Chromium) -> None:
    """Ids and texts of requests come from strangers."""
    evil = Upper("evil", identity="evil")
    with running(Upper(), [evil], name="here", page_texts=True) as node, page(browser, node.url) as tab:
        tab.until("document.querySelectorAll('#model option').length === 2")
        choose = "m.value = 'evil:1'; m.dispatchEvent(new Event('change'))"
        tab.run(f"(m => {{ {choose} }})(document.querySelector('#model'))")
        body = asking(EVIL, parameters={"deadline_s": 9})
        answer = httpx.post(
            f"{node.url}/v2/models/evil/infer",
            content=body,
            headers={"Pliant-Request": "<b>id</b>"},
        )
        assert answer.status_code == 200
        tab.until("document.querySelectorAll('#latest tr').length === 1")
        tab.run("document.querySelector('#latest button').click()")
        tab.until("!document.querySelector('#answer-text').hidden")
        assert tab.run("document.querySelector('#answer-text').textContent") == EVIL
        assert "id <b>id</b>" in tab.run("document.querySelector('#answer-what').textContent")
        assert tab.run("document.querySelectorAll('img, b, script:not([src])').length") == 0
        assert tab.run("window.hacked") is None


def test_all_of_it_is_reached_by_keyboard_and_has_a_name(browser: Chromium, node: Running) -> None:
    """Without a mouse: every control in turn, requests by arrow keys, a pause by its letter."""
    with page(browser, node.url) as tab:
        for text in ("a", "bb", "ccc"):
            node.post(text)
        tab.until("document.querySelectorAll('#latest tr').length === 3")
        met: list[str] = []
        focus = "document.activeElement"
        while len(met) < 40:
            tab.press("Tab", 9)
            now = tab.run(f"{focus}.id || {focus}.className || {focus}.tagName")
            if now in ("BODY", *met[:1]):  # all round
                break
            met.append(now)
            assert tab.run(f"getComputedStyle({focus}).outlineStyle") != "none", now
        wanted = [
            "skip",
            "model",
            "pause",
            "window",
            "points",
            "go",
            "follow",
            "ask-length",
            "ask-deadline",
            "ask-floor",
        ]
        assert [one for one in dict.fromkeys(met) if one in wanted] == wanted
        nodes = tab.call("Accessibility.getFullAXTree")["nodes"]
        unnamed = [
            one["role"]["value"]
            for one in nodes
            if one.get("role", {}).get("value")
            in ("button", "textbox", "spinbutton", "combobox", "image", "table")
            and not one.get("name", {}).get("value")
        ]
        assert unnamed == []
        tab.run("document.querySelector('#points').focus()")
        for _ in range(2):
            tab.press("ArrowLeft", 37)
        tab.until("document.querySelector('#answer-what').textContent.includes('length 1 ')")
        assert tab.run("document.querySelector('#follow').getAttribute('aria-pressed')") == "false"
        tab.press("p", 80, "p")
        assert tab.run("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
        assert tab.run("document.querySelector('#state').textContent") == "paused"


def test_what_is_typed_is_explained_as_the_node_explains_it(browser: Chromium, node: Running) -> None:
    """The page asks the node and decides nothing."""
    with page(browser, node.url) as tab:
        typed = (
            "(i => { i.value = {value}; i.dispatchEvent(new Event('input', {bubbles: true})) })"
            "(document.querySelector('#{id}'))"
        )
        for id, value in (("ask-length", "7"), ("ask-floor", "90")):
            tab.run(typed.replace("{value}", f"'{value}'").replace("{id}", id))
        found = httpx.get(f"{node.url}/v2/pliant/route", params={"length": 7, "accuracy_floor": 0.9}).json()
        assert found["target"] is None
        tab.until(f"document.querySelector('#explain-why').textContent.includes({found['reason']!r})")
        tab.run(typed.replace("{value}", "''").replace("{id}", "ask-floor"))
        found = httpx.get(f"{node.url}/v2/pliant/route", params={"length": 7}).json()
        tab.until(f"document.querySelector('#explain-why').textContent === 'local: {found['reason']}.'")
        tab.run(typed.replace("{value}", "'99999'").replace("{id}", "ask-length"))
        tab.until("document.querySelector('#explain-why').textContent.includes('99999')")


def test_it_fits_a_phone_in_the_dark_without_motion(browser: Chromium, node: Running) -> None:
    """360 px wide: nothing is cut off to the right; colours follow the system."""
    features = {"prefers_color_scheme": "dark", "prefers_reduced_motion": "reduce"}
    with page(browser, node.url, width=360, **features) as tab:
        node.post("a film")
        tab.until("document.querySelectorAll('#latest tr').length === 1")
        assert tab.run("document.documentElement.scrollWidth") == 360
        red, green, blue = map(
            int, re.findall(r"\d+", tab.run("getComputedStyle(document.body).backgroundColor"))[:3]
        )
        assert max(red, green, blue) < 40
        right = (
            "Math.max(...[...document.querySelectorAll('section')].map(s => s.getBoundingClientRect().right))"
        )
        assert tab.run(right) <= 360


def test_a_token_is_asked_for_and_kept_nowhere(browser: Chromium) -> None:
    """A wrong one is asked for again; a right one opens the page, until it is loaded anew."""
    token = "operator-0123456789"
    with running(Upper(), name="here", operator_tokens=(token,), tokens=("client-0123456789",)) as node:
        tab = browser.tab()
        tab.open(node.url)

        def enter(text: str) -> None:
            tab.until("document.querySelector('#door').open")
            tab.run(f"document.querySelector('#token').value = {text!r}")
            tab.run("document.querySelector('#door-form button').click()")

        enter("client-0123456789")
        tab.until("document.querySelector('#door-why').textContent.includes('operator')")
        enter(token)
        tab.until("document.querySelector('#state').textContent === 'live'")
        for kept in ("localStorage", "sessionStorage", "[document.cookie, location.href, history.state]"):
            assert token not in tab.run(f"JSON.stringify({kept})")
        assert tab.run("document.querySelector('#token').value") == ""
        tab.open(node.url)
        tab.until("document.querySelector('#door').open")
        tab.close()


def test_an_elastic_answer_shows_its_bits_loads_and_layers(
    browser: Chromium, tiny_store: Callable[..., Path]
) -> None:
    """Predicted above measured, and the bits that ran: what the reply itself says of them."""
    session = pliant.open(tiny_store(), memory="1MB", length=8, profile=paper_profile())
    with running(session, name="here") as node, page(browser, node.url) as tab:
        ids = {"name": "ids", "shape": [1, 6], "datatype": "INT64", "data": [1, 2, 3, 4, 5, 6]}
        url = f"{node.url}/v2/models/{session.name}/infer"
        assert httpx.post(url, json={"inputs": [ids]}, timeout=PATIENCE_S).status_code == 200
        tab.until("document.querySelector('#bits-what').textContent.startsWith('latest answer')")
        told = tab.run("fetch('/v2/pliant/answer?number=1').then(r => r.json())")
        row = "r => [...r.querySelectorAll('td:not(.left)')].map(c => +c.textContent)"
        cells = f"[...document.querySelectorAll('#bits tbody tr')].map({row})"
        assert tab.run(cells) == told["shards"]["ran"]
        tab.until("document.querySelectorAll('#timeline rect').length > 0")
        bars = _bars(tab)
        assert bars == {kind: len(told[kind]) for kind in ("predicted", "measured")}
        layers = {bar.get("layer") for bar in told["measured"] if bar["kind"] == "compute"} - {None}
        assert len(layers) == len(told["shards"]["ran"])
        ends = [bar["end_s"] for bar in told["measured"]]
        assert max(ends) <= told["event"][6] * 1.001
        memory = tab.run(
            "[...document.querySelectorAll('#memory tbody td:first-child')].map(c => c.textContent)"
        )
        assert [part.name for part in session.memory.parts] == memory[: len(session.memory.parts)]


def test_a_cluster_shows_its_workers_with_their_shares_and_links(browser: Chromium, tmp_path: Path) -> None:
    """A real primary and two workers: what the answer's own details say of them."""
    key, model = new_key(), small_model(tmp_path)
    source: EncoderSource = open_encoder(model, tmp_path)
    with ExitStack() as stack:
        given: dict[str, Any] = {"key": key, "threads": 1, "patience": PATIENT}
        cluster = stack.enter_context(pliant.Cluster("127.0.0.1:0", shares="equal", cache=tmp_path, **given))
        address = cluster.address.removeprefix("tcp://")
        for name in ("left", "right"):
            options = MemberOptions(name, key, pliant.__version__, tmp_path, 1, patience=PATIENT)
            stack.enter_context(open_worker(options, [address], [source]))
        cluster.wait(2, WAIT_S)
        node = stack.enter_context(running(cluster.open(model), name="here"))
        assert node.node is not None
        tab = stack.enter_context(page(browser, node.url))
        tab.until("document.querySelector('#devices-what').textContent === '2 in the cluster'")
        ids = {"name": "ids", "shape": [1, 12], "datatype": "INT64", "data": list(range(1, 13))}
        url = f"{node.url}/v2/models/{node.node.served.name}/infer"
        assert httpx.post(url, json={"inputs": [ids]}, timeout=PATIENCE_S).status_code == 200
        tab.until(
            "document.querySelector('#devices-what').textContent.startsWith('2 in the cluster · mode ')"
        )
        told = tab.run("fetch('/v2/pliant/answer?number=1').then(r => r.json())")["split"]
        cells = "t => [...t.querySelectorAll('tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
        workers, shares, links = tab.run(
            f"[...document.querySelectorAll('#devices-table table')].map({cells})"
        )
        assert [row[:3] for row in workers] == [[name, "worker", "ready"] for name in ("left", "right")]
        fields = ("device", "heads", "rows", "columns")
        assert shares == [[str(share[one]) for one in fields] for share in told["shares"]]
        assert sum(share["heads"] for share in told["shares"]) == CONFIG["num_attention_heads"]
        assert len(links) == len(told["ways"]) == 6
        drawn = tab.run("[...document.querySelectorAll('#devices svg text')].map(t => t.textContent)")
        assert {"left", "right", "here", "this device"} < set(drawn)


def test_a_node_whose_last_model_is_unloaded_says_so(browser: Chromium) -> None:
    """Its page goes on, without figures of what is not there."""
    with running_models([Shelf("upper").entry], name="here") as node, page(browser, node.url) as tab:
        assert node.repository is not None
        assert node.loop is not None
        tab.press("p", 80, "p")  # it asks for no curves meanwhile
        is_without = "!document.querySelector('#no-model').hidden"
        assert not tab.run(is_without)

        def change(work: Coroutine[Any, Any, None]) -> None:
            asyncio.run_coroutine_threadsafe(work, node.loop).result(PATIENCE_S)  # type: ignore[arg-type]

        change(node.repository.unload("upper"))
        tab.until(is_without)
        assert tab.run("[...document.querySelectorAll('main > section')].every(one => one.hidden)")
        assert tab.run("document.querySelector('#node').textContent") == "here"
        change(node.repository.load("upper"))
        tab.until(f"!({is_without}) && document.querySelector('#model').value === 'upper:1'")


def test_a_page_too_many_says_why_it_shows_nothing(browser: Chromium, node: Running) -> None:
    """Sixteen are enough for a node; whoever opens one more must not take it for a node that is down."""
    url = f"{node.url}/v2/pliant/events"
    with ExitStack() as stack:
        kept = []
        for _ in range(MOST_VIEWERS):
            told = stack.enter_context(httpx.stream("GET", url, timeout=PATIENCE_S))
            kept.append(told.iter_bytes())
            next(kept[-1])
        tab = browser.tab()
        tab.open(node.url)
        tab.until("document.querySelector('#state').textContent.startsWith('16 pages are open')")
        tab.close()


def _bars(tab: Tab) -> dict[str, Any]:
    count = "document.querySelectorAll('#timeline rect.{}').length"
    return {kind: tab.run(count.format(kind)) for kind in ("predicted", "measured")}


def test_a_mark_that_is_not_yet_on_the_canvas_is_drawn_later(browser: Chromium, node: Running) -> None:
    """With a window of 15 s, about half the answers come before the canvas has scrolled to their time."""
    script = """(async () => {
        const { Scatter } = await import("/page/scatter.js");
        const filled = [];
        const pen = { fillRect: (x) => filled.push(x) };
        const none = [0, 0, 0, 0];
        const answers = {
            first: 0, n: 3, at: [1, 5, 2, 0], outcome: none, seconds: none, endpoint: none, late: none,
        };
        const made = {
            answers, scale: 1, drawn: 0, left: 0, width: 4, bottom: 9, edge: 0, palette: ["red"],
            points: { getContext: () => pen }, y: () => 0, x(at) { return at - this.edge; },
        };
        const drawn = [];
        for (made.edge of [0, 1, 1]) {
            Scatter.prototype.drawNew.call(made);
            drawn.push(filled.splice(0).length);
        }
        return drawn;
    })()"""
    with page(browser, node.url) as tab:
        assert tab.run(script) == [1, 2, 0]


def test_panels_are_drawn_again_whenever_what_they_show_changes(browser: Chromium, node: Running) -> None:
    """A model without shards between two with the same bits; a device of which only a text changes."""
    bits = """(async () => {
        const { showBits } = await import("/page/panels.js");
        const plan = { layers: [0], width: 1, n_layers: 1, n_slices: 1, bits: [[6]] };
        const seen = [plan, null, plan].map((one) => {
            showBits(one, null, null);
            return document.querySelectorAll("#bits td").length;
        });
        return seen;
    })()"""
    boxes = """(async () => {
        const { Devices } = await import("/page/devices.js");
        const devices = new Devices();
        const worker = { name: "w", kind: "worker", state: "ready", n_threads: 1, free_bytes: 1e6 };
        const upstream = { name: "u", kind: "upstream", state: "ready", in_flight: 1, limit: 2, wait_s: 0 };
        const changes = [
            {}, { n_threads: 2 }, { free_bytes: 2e6 }, { limit: 4 }, { wait_s: 0.5 }, { node: "n" },
        ];
        return changes.map((change) => {
            devices.show("here", [{ ...upstream, ...change }, { ...worker, ...change }], null);
            return document.querySelector("#devices").textContent;
        });
    })()"""
    with page(browser, node.url) as tab:
        assert tab.run(bits) == [1, 0, 1]
        assert len(set(tab.run(boxes))) == 6


def test_each_version_of_a_model_is_shown_by_itself(browser: Chromium) -> None:
    """With its own requests; one version alone needs no number."""
    shelves = [Shelf("m", "1"), Shelf("m", "2"), Shelf("other")]
    entries = [shelf.entry for shelf in shelves]
    with running_models(entries, name="here") as node, page(browser, node.url) as tab:
        labels = "[...document.querySelectorAll('#model option')].map(one => one.textContent)"
        assert tab.run(labels) == ["m version 1", "m version 2", "other"]
        for version, text in (("1", "ab"), ("2", "a film")):
            url = f"{node.url}/v2/models/m/versions/{version}/infer"
            assert httpx.post(url, content=asking(text), timeout=PATIENCE_S).status_code == 200
        shown = "[...document.querySelectorAll('#latest tr')].map(row => row.cells[2].textContent).join()"
        for key, length in (("m:1", 2), ("m:2", 6)):
            choose = f"m.value = '{key}'; m.dispatchEvent(new Event('change'))"
            tab.run(f"(m => {{ {choose} }})(document.querySelector('#model'))")
            tab.until(f"{shown} === '{length}'")
            tab.until(f"document.querySelector('#answer-what').textContent.includes('length {length} ')")
            tab.until("document.querySelector('[data-key=answered] span').textContent === '1'")
