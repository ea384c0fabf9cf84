"""`pliant node` and `pliant route explain`, as processes and at their options."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import httpx
import pytest
from typer.testing import Result

from pliant.settings import cache_folder

PLIANT = [sys.executable, "-c", "from pliant.cli.app import app; app()"]
_COUNTED = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count())); "
"""At its end a process says how many objects Python's collector skips."""
PATIENCE_S = 120
SHIPPED_CACHE = cache_folder()
"""The user's own, as in other tests of shipped models: to pack and to measure one takes 15 s."""


@contextmanager
def node(cache: Path, *words: str, model: str = "imdb-lstm") -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A node as a process, and where it answers."""
    program = [sys.executable, "-c", _COUNTED + PLIANT[-1]]
    command = [*program, "node", model, "--listen", "127.0.0.1:0", "--threads", "1", "--json", *words]
    environment = {**os.environ, "PLIANT_CACHE": str(cache)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["event"] == "serves"
        yield said["url"], process
    finally:
        process.kill()
        process.communicate()


def test_a_node_serves_until_sigterm_and_ends_well(cache: Path, as_json: Callable[..., Any]) -> None:
    """Status 0: whoever supervises it sees no failure. Meanwhile it explains itself.

    The collector skips what was there at the start: visiting all of it stopped the event loop for 100 ms.
    """
    with node(cache, "--name", "one", "--settle", "1ms") as (url, process):
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a lovely film"]}
        path = f"{url}/v2/models/imdb-lstm/infer"
        answer = httpx.post(path, json={"inputs": [tensor]}, timeout=PATIENCE_S).json()
        assert answer["outputs"][1]["data"] == ["positive"]
        found = as_json("route", "explain", "--node", url, "--length", 40)
        assert (found["node"], found["target"], found["length"]) == ("one", "local", 40)
        assert found["candidates"][0]["total_s"] > 0
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"event": "stopped"}
        assert int(process.stdout.readline()) > 10_000


def test_explain_is_lines_for_people(cache: Path, cli: Callable[..., Result]) -> None:
    """One line a way, an arrow at the one that would be taken."""
    with node(cache) as (url, _):
        shown = cli("route", "explain", "--node", url, "--length", 7)
        assert shown.exit_code == 0, shown.output
        assert "-> " in shown.stdout
        assert "local" in shown.stdout


def test_explain_takes_the_deadline_and_the_floor_of_a_request(
    cli: Callable[..., Result], as_json: Callable[..., Any]
) -> None:
    """The command of the documentation; a busy machine may be late, which it says then."""
    with node(SHIPPED_CACHE, model="sst2") as (url, _):
        words = ("route", "explain", "--node", url, "--length", 40, "--deadline", "30ms", "--floor", 0.88)
        shown = cli(*words)
        assert shown.exit_code == 0, shown.output
        first, row, *_, last = shown.stdout.splitlines()
        assert first.endswith("an input of length 40 within 30 ms at an accuracy of 0.88 or more:")
        assert row[3:].startswith("local ")
        assert last.startswith(("local: ", "no answer is in time"))
        found = as_json(*words)
        assert (found["deadline_s"], found["accuracy_floor"]) == (0.03, 0.88)
        assert found["candidates"][0]["accuracy"] >= 0.88
        assert found["candidates"][0]["memory"]["held_bytes"] > 1_000_000
        assert (found["target"] is None) == ("no answer is in time" in found["reason"])
        unreached = as_json(*words[:-1], 0.99)
        assert (unreached["target"], unreached["candidates"][0]["constraint"]) == (None, "floor")


def test_several_models_share_one_bound_of_memory(cache: Path, cli: Callable[..., Result]) -> None:
    """`explain` says of each what is held; a path names the model that is asked."""
    with node(cache, "random:cove-200", "--memory", "64MB") as (url, _):
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a lovely film"]}
        for name in ("imdb-lstm", "random-cove-200"):
            path = f"{url}/v2/models/{name}/infer"
            response = httpx.post(path, json={"inputs": [tensor]}, timeout=PATIENCE_S)
            assert response.status_code == 200, response.text
        shown = cli("route", "explain", "--node", url, "--length", 7, "--model", "random-cove-200")
        assert shown.exit_code == 0, shown.output
        for name in ("imdb-lstm", "random-cove-200"):
            assert f"memory of {name}: " in shown.stdout


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--memory", "1MB"], "Give at least"),
        (["--preload", "1MB"], "--preload 1MB"),
        (["--cluster", "127.0.0.1:0"], "--cluster 127.0.0.1:0"),
    ],
)
def test_what_several_models_cannot_have_is_said(
    cli: Callable[..., Result], words: list[str], word: str
) -> None:
    """By value and limit, and what to do instead."""
    result = cli("node", "imdb-lstm", "random:cove-200", "--threads", 1, "--listen", "127.0.0.1:0", *words)
    assert result.exit_code == 1
    assert word in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--listen", "0.0.0.0:0"], "--token-file"),
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--token-file", "/does/not/exist"], "token file"),
        (["--tls-cert", "c.pem"], "--tls-key"),
        (["--upstream", "gateway:8080"], "http://HOST:PORT"),
        (["--address", "gateway:8080"], "http://HOST:PORT"),
        (["--name", "no name"], "name"),
        (["--objective", "energy"], "--power"),
        (["--worker-power", "hub=4"], "--cluster"),
        (["--worker-power", "4"], "NAME=WATTS"),
        (["--cluster-radio", "lte"], "--cluster"),
        (["--worker-radio", "hub=lte"], "--cluster"),
        (["--worker-radio", "lte"], "NAME=RADIO"),
        (["--worker-radio", "hub=umts"], "lte"),
        (["--settle", "soon"], "soon"),
        (["--peer-token-file", "/does/not/exist"], "token file"),
        (["--peer-network", "10.0.0.0/40"], "10.0.0.0/8"),
        (["--objective", "mix:0.5", "--power", "much"], "watts"),
        (["--power", "1", "--radio", "umts"], "lte"),
    ],
)
def test_wrong_options_are_said_without_a_traceback(
    cli: Callable[..., Result], words: list[str], word: str
) -> None:
    """Status 1, the value, and what to give instead."""
    result = cli("node", "imdb-lstm", "--threads", 1, "--listen", "127.0.0.1:0", *words)
    assert result.exit_code == 1
    assert word in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--listen", "nowhere"], "HOST:PORT"),
        (["--token-file", "/does/not/exist"], "token file"),
        (["--upstream", "gateway:8080"], "http://HOST:PORT"),
        (["--latency", "soon"], "soon"),
        (["--radio", "umts"], "lte"),
    ],
)
def test_wrong_options_are_said_before_the_model_is_opened(
    cli: Callable[..., Result], words: list[str], word: str
) -> None:
    """That may take a while, and a cluster waits for its workers first."""
    result = cli("node", "no-such-model", *words)
    assert result.exit_code == 1
    assert word in result.output
    assert "no-such-model" not in result.output


def test_explain_says_that_nobody_answers(cli: Callable[..., Result]) -> None:
    """Not a traceback of the client's."""
    result = cli("route", "explain", "--length", 1, "--node", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "no node answers" in result.output


def test_every_line_on_stderr_is_json_where_that_is_asked_for() -> None:
    """A collector of log lines failed at the first one, `pliant: serves ...`, and at the last."""
    words = [
        "node",
        "sst2",
        "--listen",
        "127.0.0.1:0",
        "--threads",
        "1",
        "--settle",
        "1ms",
        "--log-format",
        "json",
    ]
    with _spoken(SHIPPED_CACHE, *words) as (process, lines):
        said = _next(lines, "serves sst2 http://127.0.0.1:")
        assert (said["level"], said["logger"]) == ("info", "pliant.cli")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert [line["message"] for line in lines][-1] == "stopped"


@pytest.mark.parametrize(
    ("words", "status", "why"),
    [
        (["node", "sst2", "--latency", "soon"], 1, "cannot read 'soon'"),
        (["node", "sst2", "--queue", "-1"], 2, "--queue"),
        (["node", "sst2", "--no-such-option"], 2, "--no-such-option"),
        (["node", "--config", "/no/such.toml"], 1, "/no/such.toml cannot be read"),
        (["worker", "--join", "nowhere", "--key", "/no/key"], 1, "/no/key"),
        (["worker"], 2, "--join HOST:PORT"),
    ],
)
def test_an_error_that_ends_the_process_is_a_line_of_json(
    cache: Path, words: list[str], status: int, why: str
) -> None:
    """Whether the value, the option or a file is wrong."""
    with _spoken(cache, *words, "--log-format=json") as (process, lines):
        (said,) = lines
        assert said["level"] == "error"
        assert why in said["message"]
        assert process.wait(PATIENCE_S) == status


def test_a_hangup_serves_a_model_that_was_added_to_the_file(cache: Path, tmp_path: Path) -> None:
    """From the signal on: nothing else tells the process that its file has changed."""
    file, model = tmp_path / "node.toml", '[[model]]\nsource = "imdb-lstm"\nname = "NAME"\n'
    file.write_text(model.replace("NAME", "first"))
    words = [
        "node",
        "--config",
        str(file),
        "--listen",
        "127.0.0.1:0",
        "--threads",
        "1",
        "--log-format",
        "json",
    ]
    with _spoken(cache, *words) as (process, lines):
        url = _next(lines, "serves first ")["message"].split()[2]
        file.write_text(model.replace("NAME", "first") + model.replace("NAME", "second"))
        process.send_signal(signal.SIGHUP)
        assert _next(lines, str(file))["message"] == f"{file} was read again"
        tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a lovely film"]}
        path = f"{url}/v2/models/second/infer"
        answer = httpx.post(path, json={"inputs": [tensor]}, timeout=PATIENCE_S)
        assert answer.json()["outputs"][1]["data"] == ["positive"]


@contextmanager
def _spoken(cache: Path, *words: str) -> "Iterator[tuple[subprocess.Popen[str], Iterator[dict[str, Any]]]]":
    """A process of `pliant`, and its lines on standard error, each of which is JSON."""
    environment = {**os.environ, "PLIANT_CACHE": str(cache)}
    process = subprocess.Popen([*PLIANT, *words], stderr=subprocess.PIPE, text=True, env=environment)
    limit = Timer(PATIENCE_S, process.kill)  # a line that never comes would be waited for without end
    limit.start()
    try:
        assert process.stderr is not None
        yield process, map(json.loads, process.stderr)
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def _next(lines: Iterator[dict[str, Any]], text: str) -> dict[str, Any]:
    """The next line with `text`."""
    return next(line for line in lines if text in line["message"])
