"""Run two checkouts of pliant side by side, as `scripts/two_versions COMMIT` prepares them.

Usage: `two_versions.py OLD_SRC WORK`. Every scene has processes of both versions. It ends well where they
work together, the answer equal to that of one version alone, or where the refusal names both versions.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

MODEL = "sst2"
TEXT = "a charming and often affecting journey"
PATIENCE_S = 120.0
TOLERANCE = 1e-3
"""Of logits: another version may add in another order."""
REFUSAL = re.compile(r"speaks version \d+ of the protocol, .*version \d+")


@dataclass(frozen=True, slots=True)
class Version:
    """Where a checkout's package lies, and what it is called here."""

    name: str
    src: Path

    @contextmanager
    def started(self, log: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
        """`pliant WORDS` until the context ends; what it says on standard error is in `log`."""
        with log.open("w") as said:
            process = subprocess.Popen(
                self._command(*words), stdout=subprocess.PIPE, stderr=said, text=True, env=self._environment()
            )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def ended(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """`pliant WORDS`, to its end."""
        return subprocess.run(
            self._command(*words),
            capture_output=True,
            text=True,
            env=self._environment(),
            timeout=PATIENCE_S,
            check=False,
        )

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", "from pliant.cli import main; main()", *words]

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(self.src), "COLUMNS": "400"}


def main(old_src: str, folder: str) -> int:
    """Run all scenes; 1 where one does not end well."""
    new = Version("new", Path(__file__).resolve().parent.parent / "src")
    old, work = Version("old", Path(old_src)), Path(folder)
    is_well = True
    for scene in (nodes, cluster):
        for one, other in ((new, old), (old, new)):
            try:
                said = scene(one, other, work)
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                is_well, said = False, f"FAILED: {error}"
                for log in work.glob("*.log"):
                    print(f"--- {log.name}\n{log.read_text()[-2000:]}")
            print(f"{scene.__name__}: {scene.__doc__}".format(one.name, other.name), f"-> {said}", flush=True)
    return 0 if is_well else 1


def nodes(lower: Version, upper: Version, work: Path) -> str:
    """a slow node of the {0} version below one of the {1}"""
    below, above = work / "lower.log", work / "upper.log"
    serve = ("node", MODEL, "--listen", "127.0.0.1:0", "--json")
    with upper.started(above, *serve, "--name", "upper") as up:
        up_url = _url(up, upper)
        wanted, _ = _asked(up_url)
        slow = ("--name", "lower", "--dilate", "100", "--upstream", up_url)
        with lower.started(below, *serve, *slow) as low:
            url = _url(low, lower)
            return _until(
                lambda: _answered_above(url, wanted, (below, above)),
                f"no request went up, and nothing says why; see {below.name}",
            )


def cluster(primary: Version, worker: Version, work: Path) -> str:
    """a primary of the {0} version with a worker of the {1}"""
    key, log, address = work / f"{primary.name}.key", work / "worker.log", _free_address()
    primary.ended("cluster", "key", str(key))
    joins = ("worker", "--join", address, "--name", "helper", "--key", str(key), "--model", MODEL)
    with worker.started(log, *joins, "--threads", "1"):
        lead = ("cluster", "run", MODEL, "--listen", address, "--key", str(key), "--text", TEXT, "--json")
        alone = json.loads(primary.ended(*lead, "--wait", "0", "--patience", "1s").stdout)
        led = primary.ended(*lead, "--partition", "equal", "--wait", "1", "--threads", "1")
        (work / "primary.log").write_text(led.stderr)
        if led.returncode == 0:
            answer = json.loads(led.stdout)
            _check(answer["answer"], alone["answer"])
            assert "helper" in answer["participants"], f"the worker took no part: {answer['participants']}"
            return "works: answered by both"
        refusal = REFUSAL.search(led.stderr)
        assert refusal is not None, f"exit status {led.returncode}: {led.stderr[-500:]}"
        return f"refused: {refusal[0]}"


def _answered_above(url: str, wanted: Sequence[float], logs: Iterable[Path]) -> str | None:
    """What became of a request to the lower node: None where it has not found the upper one yet."""
    found, node = _asked(url)
    _check(found, wanted)
    if node == "upper":
        return "works: answered above"
    refusals = (REFUSAL.search(log.read_text()) for log in logs)
    return next((f"refused, and answered below: {found[0]}" for found in refusals if found), None)


def _asked(url: str) -> tuple[Sequence[float], str]:
    """The logits of a request to `url`, and the node that made them."""
    text = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}
    body = json.dumps({"inputs": [text]}).encode()
    with urllib.request.urlopen(f"{url}/v2/models/{MODEL}/infer", body, PATIENCE_S) as response:
        answer, node = json.load(response), str(response.headers["Pliant-Node"])
    (logits,) = (one["data"] for one in answer["outputs"] if one["name"] == "logits")
    return logits, node


def _check(found: Sequence[float], wanted: Sequence[float]) -> None:
    """Raise AssertionError for other logits."""
    is_same = all(abs(one - other) <= TOLERANCE for one, other in zip(found, wanted, strict=True))
    assert is_same, f"answered {found}, not {wanted}"


def _url(node: "subprocess.Popen[str]", version: Version) -> str:
    """Where a node serves, as its first line says."""
    assert node.stdout is not None
    line = node.stdout.readline()
    assert line, f"the node of the {version.name} version ended before it served: does that start by itself?"
    return str(json.loads(line)["url"])


def _free_address() -> str:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def _until(found: Callable[[], str | None], why: str) -> str:
    ends_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s:
        if (value := found()) is not None:
            return value
        time.sleep(0.2)
    raise AssertionError(why)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
