"""[serve.page] The page of a node: first paint, size, smoothness under 1,000 events a second, its cost."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from statistics import median

import httpx
import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the browser's driver

from pliant.api.open_endpoint import open_endpoint
from pliant.ir.reply import Reply
from pliant.serve.node.start_node import NodeOptions
from pliant.serve.page.page_files import page_files
from pliant.serve.page.session_page import SessionPage, session_page
from report import Report, options
from tests.serve.page.chromium import Chromium, Tab, chromium, find_chromium

EVENTS_A_SECOND = 1000
PAINT_MS, SIZE_BYTES, FRAME_MS, COST = 300.0, 150_000, 33.4, 0.02
TEXT = "a charming and often affecting journey through what people never quite say"
_RATE = 250
"""About as many as one client asks the node for."""
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_FRAMES = """new Promise(done => {
  const took = [];
  let last = performance.now();
  const end = last + SECONDS * 1e3;
  const frame = now => {
    took.push(now - last);
    last = now;
    if (now < end) requestAnimationFrame(frame); else done(took);
  };
  requestAnimationFrame(frame);
})"""


def opened(browser: Chromium, url: str) -> Tab:
    """A page, once it is live."""
    tab = browser.tab()
    tab.emulate(1440, 900)
    tab.open(url)
    tab.until("document.querySelector('#state').textContent === 'live'")
    return tab


def first_paints_ms(browser: Chromium, url: str, n: int) -> list[float]:
    """Of pages that are opened one after the other, without a cache."""
    found = []
    for _ in range(n):
        tab = browser.tab()
        tab.call("Network.setCacheDisabled", cacheDisabled=True)
        tab.emulate(1440, 900)
        tab.open(url)
        found.append(float(tab.until(_PAINT)))
        tab.close()
    return found


@contextmanager
def replaying(page: SessionPage, rate: int = EVENTS_A_SECOND) -> Iterator[None]:
    """Tell the page of `rate` answers a second, of many lengths and times."""
    ends = threading.Event()
    draw = np.random.default_rng(0)
    seconds = draw.lognormal(-4.5, 0.8, EVENTS_A_SECOND).tolist()

    def work() -> None:
        start_s, n = time.monotonic(), 0
        while not ends.wait(0.01):
            for _ in range(int((time.monotonic() - start_s) * rate) - n):
                page.feed.answered(Reply({}, "sst2", seconds[n % len(seconds)], None, n % 128, target_s=0.02))
                n += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def node_process() -> Iterator[tuple[str, psutil.Process]]:
    """A node of sst2 in a process of its own: whose processor time is the node's alone."""
    command = [sys.executable, "-m", "pliant", "node", "sst2", "--threads", "1", "--json"]
    command += ["--listen", "127.0.0.1:0", "--settle", "1ms"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def cpu_a_request_s(url: str, node: psutil.Process, n: int) -> float:
    """Processor seconds of the node for one request of one client."""
    asked = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    with httpx.Client() as client:
        start_s = sum(node.cpu_times()[:2])
        for _ in range(n):
            client.post(f"{url}/v2/models/sst2/infer", json=asked).raise_for_status()
        return (sum(node.cpu_times()[:2]) - start_s) / n


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Somebody follows the events without a browser, which would take processor time and caches itself."""
    process = subprocess.Popen(["curl", "-sN", f"{url}/v2/pliant/events"], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def looking(browser: Chromium, url: str) -> Iterator[None]:
    """A page is open."""
    tab = opened(browser, url)
    try:
        yield
    finally:
        tab.close()


def costs_s(
    browser: Chromium, other: SessionPage, url: str, node: psutil.Process, rounds: int, n: int
) -> dict[str, list[float]]:
    """The node's processor seconds a request, in turns: alone, its events read, a page open.

    With a page of another node open, the browser takes caches and cores from this node as its own page does:
    what that adds is not the node's work.
    """

    @contextmanager
    def looking_elsewhere() -> Iterator[None]:
        with replaying(other, _RATE), looking(browser, other.url):
            yield

    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "alone": nullcontext,
        "reader": lambda: reading(url),
        "another's page": looking_elsewhere,
        "page": lambda: looking(browser, url),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    cpu_a_request_s(url, node, n)
    for _ in range(rounds):
        for name, way in ways.items():
            with way():
                cpu_a_request_s(url, node, n // 8)
                found[name].append(cpu_a_request_s(url, node, n))
    return found


def growth(found: dict[str, list[float]], name: str, base: str = "alone") -> float:
    """The median of how much more a request takes than by `base` in the same turn."""
    return median(b / a for a, b in zip(found[base], found[name], strict=True)) - 1.0


def main() -> None:
    arguments = options((__doc__ or "").splitlines()[0])
    if find_chromium() is None:
        raise SystemExit("this bench needs Chromium: apt-get install chromium.")
    rounds, n, seconds = (3, 200, 3) if arguments.quick else (7, 400, 5)
    report = Report("serve_page", "sst2 on this device, one client; headless Chromium, 1440 x 900", arguments)
    with ExitStack() as stack:
        served = open_endpoint("sst2", threads=1)
        page = stack.enter_context(session_page(served, NodeOptions(version="bench", settle_s=0.0)))
        browser = stack.enter_context(chromium())
        paints = first_paints_ms(browser, page.url, 3 if arguments.quick else 9)
        tab = opened(browser, page.url)
        with replaying(page):
            tab.until("Number(document.querySelectorAll('#latest tr').length) > 0")
            frames = tab.run(_FRAMES.replace("SECONDS", str(seconds)))[1:]
        tab.close()
        url, node = stack.enter_context(node_process())
        cost = costs_s(browser, page, url, node, rounds, n)
    files = page_files()
    plain, packed = (sum(len(getattr(file, kind)) for file in files.values()) for kind in ("plain", "packed"))
    worst = float(np.quantile(frames, 0.95))
    report.table(
        "The page",
        [
            {"what": "first paint, ms", "median": median(paints), "worst": max(paints)},
            {"what": "frame at 1,000 events/s, ms", "median": median(frames), "worst": max(frames)},
            *(
                {"what": f"processor a request, ms: {name}", "median": median(took) * 1e3, "worst": None}
                for name, took in cost.items()
            ),
            {"what": "bytes, as they lie", "median": plain, "worst": None},
            {"what": "bytes, as they are sent", "median": packed, "worst": None},
        ],
    )
    report.claim("serve.page.paint", median(paints), f"under {PAINT_MS:g} ms", median(paints) < PAINT_MS)
    report.claim("serve.page.size", plain, f"under {SIZE_BYTES} bytes", plain < SIZE_BYTES)
    report.claim(
        "serve.page.smooth", worst, f"95 of 100 frames within {FRAME_MS:g} ms (30 a second)", worst < FRAME_MS
    )
    more = growth(cost, "page", "another's page")
    beside = growth(cost, "another's page")
    note = (
        f"over a page of another node, which itself adds {beside:.1%}; page over nothing "
        f"{growth(cost, 'page'):.1%}, a reader of the events without a browser {growth(cost, 'reader'):.1%}"
    )
    report.claim("serve.page.cost", more, f"at most {COST:.0%} more processor time", more <= COST, note)
    report.finish()


if __name__ == "__main__":
    main()
