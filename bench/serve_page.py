"""[serve.page] The page of a node: first paint, size, frame times at 1,000 events per second, and its
cost.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from statistics import median

import httpx
import numpy as np

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
ALONE, ASKED, ELSEWHERE, PAGE = "alone", "asked as a page asks", "another node's page", "its page"
ASKS_S = 2.0
"""The interval at which a page requests curves, an explanation, and the latest answer."""
_RATE = 250
"""Events per second, about the rate of one client's requests."""
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
    """Open a page, and wait until it is live."""
    tab = browser.tab()
    tab.emulate(1440, 900)
    tab.open(url)
    tab.until("document.querySelector('#state').textContent === 'live'")
    return tab


def first_paints_ms(browser: Chromium, url: str, n: int) -> list[float]:
    """First-paint times of pages opened one after the other, without a cache."""
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
    """Send `rate` answers per second to the page, of many lengths and times."""
    ends = threading.Event()
    draw = np.random.default_rng(0)
    seconds = draw.lognormal(-4.5, 0.8, EVENTS_A_SECOND).tolist()

    def work() -> None:
        start_s, n = time.monotonic(), 0
        while not ends.wait(0.01):
            for _ in range(int((time.monotonic() - start_s) * rate) - n):
                page.feed.record_reply(
                    Reply({}, "sst2", seconds[n % len(seconds)], None, n % 128, target_s=0.02)
                )
                n += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


@contextmanager
def shown_session() -> Iterator[SessionPage]:
    """The page of a node of this process."""
    served = open_endpoint("sst2", threads=1)
    with session_page(served, NodeOptions(version="bench", settle_s=0.0)) as page:
        yield page


@contextmanager
def node_process(core: int) -> Iterator[tuple[str, int]]:
    """A node of sst2 as a process on a separate core: its URL and process id."""
    command = ["taskset", "-c", str(core), sys.executable, "-m", "pliant", "node", "sst2", "--threads", "1"]
    command += ["--json", "--listen", "127.0.0.1:0", "--settle", "1ms"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        process.wait()


def processor_s(pid: int) -> float:
    """The processor time of a process, in nanoseconds; psutil has ticks of 10 ms."""
    return time.clock_gettime((~pid << 3) | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the system


def cpu_a_request_s(url: str, pid: int, seconds: float) -> float:
    """Processor seconds of the node per request, with one client for `seconds`."""
    asked = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    n, ends_s = 0, time.monotonic() + seconds
    with httpx.Client() as client:
        start_s = processor_s(pid)
        while time.monotonic() < ends_s:
            client.post(f"{url}/v2/models/sst2/infer", json=asked).raise_for_status()
            n += 1
        return (processor_s(pid) - start_s) / n


@contextmanager
def asking_as_a_page(url: str) -> Iterator[None]:
    """Send the requests of a page at its rate, without a browser, which would use caches and memory."""
    ends, latest = threading.Event(), [0]

    def follow() -> None:
        with httpx.stream("GET", f"{url}/v2/pliant/events") as told:
            for line in told.iter_lines():
                if line.startswith("data: ["):
                    latest[0] = json.loads(line.removeprefix("data: "))[0]["answers"][-1][0]
                if ends.is_set():
                    return

    def ask() -> None:
        with httpx.Client(base_url=f"{url}/v2/pliant", params={"model": "sst2"}) as client:
            while not ends.wait(ASKS_S):
                client.get("outlook").raise_for_status()
                client.get("route", params={"length": 40}).raise_for_status()
                client.get("answer", params={"number": latest[0]})

    threads = [threading.Thread(target=work) for work in (follow, ask)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


@contextmanager
def looking(browser: Chromium, url: str) -> Iterator[None]:
    """Open a page during the block."""
    tab = opened(browser, url)
    try:
        yield
    finally:
        tab.close()


def costs_s(
    browser: Chromium, other: SessionPage, url: str, pid: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """The node's processor seconds per request, interleaved, with and without an open page.

    With a page of another node open, the browser uses caches and memory as with its own page; this addition
    is not the node's work.
    """

    @contextmanager
    def looking_elsewhere() -> Iterator[None]:
        with replaying(other, _RATE), looking(browser, other.url):
            yield

    ways: dict[str, Callable[[], AbstractContextManager[None]]] = {
        ALONE: nullcontext,
        ASKED: lambda: asking_as_a_page(url),
        ELSEWHERE: looking_elsewhere,
        PAGE: lambda: looking(browser, url),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    cpu_a_request_s(url, pid, seconds)
    for i in range(rounds):
        for name in list(ways)[:: -1 if i % 2 else 1]:
            with ways[name]():
                cpu_a_request_s(url, pid, 0.3)
                found[name].append(cpu_a_request_s(url, pid, seconds))
    return found


def growth(found: dict[str, list[float]], name: str, base: str) -> np.ndarray:
    """The increase of a request's time over `base` in the same round: quartiles over all rounds."""
    every = [b / a - 1.0 for a, b in zip(found[base], found[name], strict=True)]
    return np.quantile(every, (0.25, 0.5, 0.75))


def main() -> None:
    arguments = options((__doc__ or "").splitlines()[0])
    if find_chromium() is None:
        raise SystemExit("this bench needs Chromium: apt-get install chromium.")
    rounds, seconds = (4, 1.5) if arguments.quick else (20, 2.0)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("this bench needs two cores: one is the node's alone.")
    report = Report("serve_page", "sst2 on this device, one client; headless Chromium, 1440 x 900", arguments)
    with shown_session() as page, chromium() as browser:
        paints = first_paints_ms(browser, page.url, 3 if arguments.quick else 9)
        tab = opened(browser, page.url)
        with replaying(page):
            tab.until("Number(document.querySelectorAll('#latest tr').length) > 0")
            frames = tab.run(_FRAMES.replace("SECONDS", "3" if arguments.quick else "10"))[1:]
        tab.close()
    os.sched_setaffinity(0, cores[1:])  # inherited by processes started from here on
    with node_process(cores[0]) as (url, pid), shown_session() as other, chromium() as browser:
        cost = costs_s(browser, other, url, pid, rounds, seconds)
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
    least, more, most = growth(cost, PAGE, ELSEWHERE)
    beside = {name: growth(cost, name, ALONE) for name in (ASKED, ELSEWHERE, PAGE)}
    note = f"quartiles {least:+.1%} to {most:+.1%} of {rounds} rounds; over alone: " + ", ".join(
        f"{name} {median:+.1%} ({low:+.1%} to {high:+.1%})" for name, (low, median, high) in beside.items()
    )
    report.claim(
        "serve.page.cost",
        f"{more:+.2%} with the page open over with another node's, {beside[ASKED][1]:+.2%} without a browser",
        f"at most {COST:.0%} more processor time of the node, each",
        max(more, beside[ASKED][1]) <= COST,
        note,
    )
    report.note(
        "The node has one core; browser, client and the other node share the other one; both cores share the "
        "last-level cache and the memory. Processor time is that of the node's process by the system's clock."
    )
    report.finish()


if __name__ == "__main__":
    main()
