"""Real processes in a deadline world: a gateway behind a link, workers, and this device.

A network of namespaces (testbed/): this process is on the device `local`; the gateway is a node whose frames
are delayed and shaped by the link's series; each worker is a process on its own device. Slow devices are
dilated so that the whole model takes the time in the world's file, calibrated by trials at that dilation.
Cores are kept awake, and each step of the local session counts at most its profile's 95th percentile: a
device 150 times slower sleeps so long that this machine's caches are cold afterwards. The local device's
session and its part of a cluster each compute on one core.
"""

import gc
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from itertools import count
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import final
from urllib.parse import urlsplit

import checkout  # noqa: F401 - research and testbed lie there
import pliant
from pliant.cluster.net.key import make_key
from pliant.errors import PliantError
from pliant.ir.dilation import Dilation
from pliant.ir.link import Link
from report import ROOT
from research.deadline_world import Course, Scenario, TimedRequest
from slo_records import Ask, Record, RefusedError, Texts
from testbed import DeviceSpec, Network
from testbed.awake import awake
from testbed.hepti import start_worker
from testbed.inside import inside
from testbed.nodes import NodeBed

MODEL = "sst2"
LOCAL, GATEWAY = "local", "gateway"
PORT = 29500
SILENCE_S = 1.0
BOOT_S = {GATEWAY: 8.0}
"""The start-up time of a device's process before its return, seconds of the clock; workers take 3."""
_WORKER_BOOT_S = 3.0
_PATIENCE_S = 120.0
_QUICK_S = 0.05
"""The approximate time of the whole model on a fast device: gateways and workers."""
_GUESS_S = 4e-3
_N_TRIALS, _N_ROUNDS = 7, 2
_CLIENTS = 64
TRACES = Path(os.environ.get("PLIANT_TRACES") or ROOT.parent / "shared" / "traces")


@final
@dataclass(slots=True)
class LocalPace:
    """The current dilation of this device, for sessions and for a cluster's primary.

    `watchers` are called on each change, for users that need a number instead of a function.
    """

    times: float = 1.0
    watchers: list[Callable[[Dilation], None]] = field(default_factory=list)

    def __call__(self) -> Dilation:
        return Dilation(self.times)

    def set(self, times: float) -> None:
        self.times = times
        for watch in self.watchers:
            watch(Dilation(times))


@final
@dataclass(slots=True)
class Bed:
    """The devices; `unit_s` and `quick_unit_s` are the times of the whole model at 24 tokens on the local
    device and on fast ones, divided by their dilation.

    A way opens its sessions on `local`: with `pace` as their dilation, a cluster listening at `listen` with
    the key at `key`, the gateway at `url`, with `token`.
    """

    network: Network
    node: NodeBed
    folder: Path
    unit_s: float
    quick_unit_s: float
    gateway_s: float
    workers: tuple[str, ...]
    pace: LocalPace = field(default_factory=LocalPace)
    _gone: set[str] = field(default_factory=set)

    @property
    def listen(self) -> str:
        return f"{self.network[LOCAL].address}:{PORT}"

    @property
    def key(self) -> Path:
        return self.folder / "cluster.key"

    @property
    def url(self) -> str:
        return self.node.url(GATEWAY)

    @property
    def token(self) -> str:
        return self.node.token

    def times(self, name: str, seconds: float) -> float:
        """The dilation at which the whole model takes `seconds` on a device."""
        return max(seconds / (self.unit_s if name == LOCAL else self.quick_unit_s), 1.0)

    def start(self, name: str) -> None:
        """Start or restart the process of a device."""
        self._gone.discard(name)
        if name == GATEWAY:
            self.node.start(GATEWAY)
            return
        words = ["--dilate-compute", f"@{self._pace_of(name)}"]
        device = self.network[name]
        local = self.network[LOCAL].address
        start_worker(device, local, MODEL, self.folder, words, silence_s=SILENCE_S)

    def kill(self, name: str) -> None:
        self._gone.add(name)
        self.network[name].kill()

    def set_pace(self, name: str, seconds: float) -> None:
        """Set the time of the whole model on a worker or on this device."""
        if name == LOCAL:
            self.pace.set(self.times(name, seconds))
        else:
            path = self._pace_of(name)
            fresh = path.with_suffix(".new")
            fresh.write_text(f"{self.times(name, seconds):.6g}")
            fresh.replace(path)

    def mend(self, scenario: Scenario) -> None:
        """Restore all devices to their state at a scenario's start. Raises BedError."""
        for name in tuple(self._gone):
            self.start(name)
        link = scenario.link.at(0.0, 0.0)
        if link is not None:
            self.network.restore(GATEWAY)
            self.network.set_delay(GATEWAY, link.latency_s / 2.0)
            self.network.set_bandwidth(GATEWAY, link.bandwidth_Bps)
        for name, course in courses(scenario).items():
            if name != GATEWAY and course.seconds(0.0) < inf:
                self.set_pace(name, course.seconds(0.0))
        self.node.wait(GATEWAY)

    def _pace_of(self, name: str) -> Path:
        return self.folder / f"{name}.pace"


def courses(scenario: Scenario) -> dict[str, Course]:
    """The courses of all devices by name."""
    return {LOCAL: scenario.local, GATEWAY: scenario.gateway, **scenario.workers}


@contextmanager
def open_bed(scenario: Scenario) -> Iterator[Bed]:
    """Start the devices of a scenario, with this thread on the local one; usable for any scenario with the
    same devices.

    Raises BedError without a testbed.
    """
    gateway_s = scenario.gateway.whole_s
    workers = tuple(scenario.workers)
    with ExitStack() as ends:
        ends.enter_context(awake())
        unit_s, quick_unit_s = calibrated_s(scenario.local.whole_s), calibrated_s(_QUICK_S)
        specs = [
            DeviceSpec(LOCAL),
            DeviceSpec(GATEWAY, slower=max(gateway_s / quick_unit_s, 1.0), delay_s=0.0),
            *(DeviceSpec(name) for name in workers),
        ]
        folder = Path(ends.enter_context(TemporaryDirectory()))
        make_key(folder / "cluster.key")
        (folder / "token").touch(0o600)
        (folder / "token").write_text(f"{os.urandom(16).hex()}\n")
        network = ends.enter_context(Network(specs))
        ends.enter_context(inside(network[LOCAL]))
        node = NodeBed(network, MODEL, {}, folder)
        bed = Bed(network, node, folder, unit_s, quick_unit_s, gateway_s, workers)
        for name in workers:
            bed.set_pace(name, scenario.workers[name].whole_s)
        for name in (GATEWAY, *workers):
            bed.start(name)
        bed.mend(scenario)
        yield bed


def calibrated_s(whole_s: float) -> float:
    """The time of the whole model at 24 tokens on one thread of a device dilated to take `whole_s`, divided
    by the dilation; without interruptions.
    """
    unit_s = _GUESS_S
    with pliant.open(MODEL, threads=1, preload="100MB", adapt=False) as session:
        session.runner.is_steady = True
        request = session.request(session.sample(24))
        for _ in range(_N_ROUNDS):
            times = max(whole_s / unit_s, 1.0)
            session.runner.dilation = Dilation(times)
            took = sorted(session.answer(request).seconds for _ in range(_N_TRIALS))
            unit_s = took[_N_TRIALS // 3] / times
    return unit_s


def play(bed: Bed, scenario: Scenario, ask: Ask, texts: Texts) -> list[Record]:
    """The scenario's requests, each at its time, independent of the others, while its world changes."""
    asked = [(request, *texts.of(request)) for request in scenario.requests]
    with _world(bed, scenario) as start_s, ThreadPoolExecutor(_CLIENTS) as pool:
        waiting = []
        for request, text, label in asked:
            at_s = start_s + request.at_s / scenario.speed
            time.sleep(max(0.0, at_s - time.perf_counter()))
            waiting.append(pool.submit(_asked, ask, request, text, label, at_s))
        return [future.result() for future in waiting]


def play_closed(bed: Bed, scenario: Scenario, ask: Ask, texts: Texts, n_clients: int) -> list[Record]:
    """The scenario's requests by `n_clients` closed-loop clients.

    Requests are repeated until the world ends; `at_s` is the time of sending.
    """
    asked = [(request, *texts.of(request)) for request in scenario.requests]
    found: list[Record] = []
    with _world(bed, scenario) as start_s, ThreadPoolExecutor(n_clients) as pool:

        def client(first: int) -> list[Record]:
            records = []
            for number in count(first, n_clients):
                sent_s = time.perf_counter()
                if sent_s - start_s >= scenario.duration_s:
                    break
                request, text, label = asked[number % len(asked)]
                record = _asked(ask, request, text, label, sent_s)
                records.append(replace(record, number=number, at_s=sent_s - start_s))
            return records

        for records in pool.map(client, range(n_clients)):
            found += records
    return sorted(found, key=lambda record: record.at_s)


@contextmanager
def _world(bed: Bed, scenario: Scenario) -> Iterator[float]:
    """Run the world's changes during the block; yields its start time by time.perf_counter()."""
    gc.collect()
    gc.freeze()  # as in `pliant node`: a full collection takes longer than a request
    stopped, start_s = Event(), time.perf_counter()
    acts = [
        Thread(target=act, args=(bed, scenario, start_s, stopped)) for act in (_play_others, _play_course)
    ]
    for thread in acts:
        thread.start()
    try:
        yield start_s
    finally:
        stopped.set()
        for thread in acts:
            thread.join()


def executed_twice(bed: Bed) -> int:
    """Requests that the gateway executed more than once, by their ids, over all restarts."""
    ids = Counter(done.id for done in bed.node.executed(GATEWAY))
    return sum(count > 1 for count in ids.values())


def _asked(ask: Ask, request: TimedRequest, text: str, label: str, at_s: float) -> Record:
    """Send a request; its time counts from its scheduled time, even if no thread was free."""
    answer, reason = None, ""
    left_s = request.deadline_s - (time.perf_counter() - at_s)
    try:
        if left_s <= 0.0:
            raise RefusedError("no thread was free for it in time")
        answer = ask(text, left_s, request.floor)
    except (RefusedError, PliantError) as error:
        reason = f"{type(error).__name__}: {error}"
    return Record(
        request.number,
        request.at_s,
        request.deadline_s,
        request.floor,
        time.perf_counter() - at_s,
        None if answer is None else answer.endpoint,
        None if answer is None else answer.label,
        None if answer is None else answer.accuracy,
        label,
        reason,
        0.0 if answer is None else answer.work_s,
        0.0 if answer is None else answer.unused_s,
    )


def _play_course(bed: Bed, scenario: Scenario, start_s: float, stopped: Event) -> None:
    """Apply link changes, speed changes and failures, each at its time."""
    for at_s, act in _events(bed, scenario):
        if stopped.wait(max(0.0, start_s + at_s / scenario.speed - time.perf_counter())):
            return
        act()


def _events(bed: Bed, scenario: Scenario) -> list[tuple[float, Callable[[], None]]]:
    """The events in a world, by time."""
    found: list[tuple[float, Callable[[], None]]] = []
    before = None
    for at_s, link in zip(scenario.link.starts, scenario.link.links, strict=True):
        if link != before:
            found.append((at_s, lambda link=link, before=before: _follow(bed, link, before)))
        before = link
    for name, course in courses(scenario).items():
        was_gone = False
        for at_s, times in zip(course.slower.starts, course.slower.values, strict=True):
            if times == inf:
                found.append((at_s, lambda name=name: bed.kill(name)))
            elif was_gone:
                early_s = BOOT_S.get(name, _WORKER_BOOT_S) * scenario.speed
                found.append((at_s - early_s, lambda name=name: bed.start(name)))
            if times < inf and name != GATEWAY:
                seconds = course.whole_s * times
                found.append((at_s, lambda name=name, seconds=seconds: bed.set_pace(name, seconds)))
            was_gone = times == inf
    return sorted(found, key=lambda event: event[0])


def _follow(bed: Bed, link: Link | None, before: Link | None) -> None:
    """Change the link to the gateway; None disconnects it."""
    network = bed.network
    if link is None:
        network.cut(GATEWAY)
        return
    if before is None:
        network.restore(GATEWAY)
    network.set_delay(GATEWAY, link.latency_s / 2.0)
    if before is None or before.bandwidth_Bps != link.bandwidth_Bps:
        network.set_bandwidth(GATEWAY, link.bandwidth_Bps)


def _play_others(bed: Bed, scenario: Scenario, start_s: float, stopped: Event) -> None:
    """Send other clients' requests from the gateway's own device, so that they do not use this device's
    link.
    """
    if not scenario.others_s:
        return
    texts = [
        "so many words as most of the texts have that others ask this gateway about all day long , on and on"
    ]
    body = infer_body(texts[0])
    with inside(bed.network[GATEWAY]), ThreadPoolExecutor(_CLIENTS) as pool:
        for at_s in scenario.others_s:
            if stopped.wait(max(0.0, start_s + at_s / scenario.speed - time.perf_counter())):
                return
            pool.submit(_ask_once, bed, body)


def _ask_once(bed: Bed, body: bytes) -> None:
    with suppress(OSError, HTTPException):
        connection = HTTPConnection(urlsplit(bed.url).netloc, timeout=5.0)
        connection.request("POST", f"/v2/models/{MODEL}/infer", body, headers(bed))
        connection.getresponse().read()
        connection.close()


def infer_body(text: str, **parameters: float) -> bytes:
    """An inference request of one text."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def headers(bed: Bed) -> dict[str, str]:
    """The headers of a request to the gateway."""
    return {"content-type": "application/json", "authorization": f"Bearer {bed.token}"}
