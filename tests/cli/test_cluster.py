"""`pliant cluster` and `pliant worker` as a user starts them: processes on loopback."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from typer.testing import CliRunner

from pliant.api.open_cluster import Cluster
from pliant.cli.app import app
from pliant.cluster.lead.status_report import ClusterStatus
from pliant.serve.telemetry.cluster_metrics import metrics_of_primary
from tests.cli.conftest import Cli
from tests.cluster.ports import unused_ports
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, command, small_model, workers
from tests.serve.test_routing import until


def test_a_key_is_made_once_and_never_over_another(cli: Cli, tmp_path: Path) -> None:
    """Members that hold the old one would be locked out."""
    path = tmp_path / "key"
    made = cli("cluster", "key", str(path), "--json")
    assert json.loads(made.stdout)["path"] == str(path)
    assert path.stat().st_mode & 0o777 == 0o600
    again = cli("cluster", "key", str(path))
    assert again.exit_code == 1
    assert "there already" in again.output


def test_no_workers_is_an_error_that_says_what_to_start(cli: Cli, tmp_path: Path) -> None:
    """The first thing that goes wrong."""
    key = tmp_path / "key"
    cli("cluster", "key", str(key))
    asked = ("--tokens", "8", "--listen", "127.0.0.1:0", "--key", str(key), "--patience", "200ms")
    done = cli("cluster", "run", small_model(tmp_path), *asked)
    assert done.exit_code == 1
    assert "pliant worker --join" in done.output


def test_status_asks_the_primary_that_runs(cli: Cli, tmp_path: Path) -> None:
    """Who watches a cluster must not become one: no port of its own, no workers taken."""
    key = tmp_path / "key"
    cli("cluster", "key", str(key))
    with Cluster("127.0.0.1:0", key=key, threads=1, shares="equal") as cluster:
        model = small_model(tmp_path)
        session = cluster.open(model)
        session(session.sample(8))
        asked = ("cluster", "status", "--primary", cluster.address.removeprefix("tcp://"), "--key", str(key))
        found = json.loads(cli(*asked, "--json").stdout)
        shown = cli(*asked).stdout
    assert (found["name"], found["n_runs"], found["n_failed"]) == (cluster.name, 1, 0)
    assert (found["is_running"], found["members"], found["faults"]) == (False, [], [])
    assert found["plan"]["partition"]["primary"] == cluster.name
    assert f"{cluster.name} (pliant " in shown
    assert "idle, 1 runs done, 0 failed" in shown
    assert "no worker joined" in shown


def test_status_without_a_primary_is_an_error_that_says_where_it_looked(cli: Cli, tmp_path: Path) -> None:
    """It must not wait for ever, nor start one."""
    key = tmp_path / "key"
    cli("cluster", "key", str(key))
    (port,) = unused_ports(1)
    asked = ("--primary", f"127.0.0.1:{port}", "--key", str(key), "--patience", "200ms")
    done = cli("cluster", "status", *asked)
    assert done.exit_code == 1
    assert f"no primary answers at 127.0.0.1:{port} within 0.2 s (no response" in done.output


def test_a_model_that_is_not_there_is_an_error(cli: Cli, tmp_path: Path) -> None:
    """No traceback for a misspelt name."""
    key = tmp_path / "key"
    cli("cluster", "key", str(key))
    asked = ("--listen", "127.0.0.1:0", "--key", str(key), "--wait", "0", "--tokens", "8")
    done = cli("cluster", "run", "random:no-such", *asked)
    assert done.exit_code == 1
    assert "no-such" in done.output


@pytest.mark.parametrize("text", ["", "word " * 200])
def test_a_wrong_text_is_refused_before_workers_are_waited_for(cli: Cli, tmp_path: Path, text: str) -> None:
    """Else the error comes only once workers have joined."""
    cli("cluster", "key", str(tmp_path / "key"))
    asked = ("--listen", "127.0.0.1:0", "--key", str(tmp_path / "key"), "--patience", "1ms")
    done = cli("cluster", "run", small_model(tmp_path), "--text", text, *asked)
    assert done.exit_code == 1
    assert "workers joined" not in done.output


_PATIENTLY = f"""
from pliant.cluster.control.timeouts import ClusterTimeouts
ClusterTimeouts.__init__.__defaults__ = {astuple(PATIENT)}
"""
"""Before anything else in a primary: it has no option for its patience, and a busy machine is no fault."""


@pytest.mark.slow
def test_two_processes_answer_together_and_write_a_trace(tmp_path: Path) -> None:
    """`pliant cluster run` beside `pliant worker`, both by their command lines."""
    key, trace, said = tmp_path / "key", tmp_path / "trace.json", tmp_path / "said"
    subprocess.run(command("cluster", "key", str(key)), check=True, capture_output=True)
    model = small_model(tmp_path)
    words = ("--listen", "127.0.0.1:0", "--key", str(key), "--threads", "1", "--partition", "equal")
    asked = command("cluster", "run", model, "--tokens", "16", "--trace", str(trace), "--json", *words)
    asked[2] = _PATIENTLY + asked[2]
    with said.open("wb") as errors:
        primary = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=errors)
    try:
        with workers(_address(said, primary), key, model, tmp_path, "w"):
            out, _ = primary.communicate(timeout=WAIT_S)
    finally:
        primary.kill()
        if primary.stdout is not None:
            primary.stdout.close()
    assert primary.returncode == 0, said.read_text()
    reply = json.loads(out)
    leader, worker = reply["participants"]
    assert leader.startswith("primary-")
    assert worker == "w"
    assert reply["faults"] == []
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {f"{leader}/cpu", "w/cpu", f"net:{leader}->w", f"net:w->{leader}"} <= lanes


@pytest.mark.slow
def test_a_node_answers_over_the_workers_that_join_it(tmp_path: Path) -> None:
    """`pliant node --cluster` waits for as many as it is told, serves, and ends well."""
    key, said = tmp_path / "key", tmp_path / "said"
    subprocess.run(command("cluster", "key", str(key)), check=True, capture_output=True)
    model = small_model(tmp_path)
    words = ("--cluster", "127.0.0.1:0", "--workers", "1", "--key", str(key), "--threads", "1", "--json")
    with said.open("wb") as errors:
        asked = command("node", model, "--listen", "127.0.0.1:0", "--settle", "1ms", *words)
        node = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert node.stdout is not None
        with workers(_address(said, node), key, model, tmp_path, "w"):
            serves = json.loads(node.stdout.readline())
            ids = {"name": "ids", "shape": [1, 4], "datatype": "INT64", "data": [5, 6, 7, 8]}
            url = f"{serves['url']}/v2/models/{serves['model']}/infer"
            answer = httpx.post(url, json={"inputs": [ids]}, timeout=60)
            assert answer.status_code == 200, answer.text
            node.terminate()
            assert node.wait(60) == 0, said.read_text()
    finally:
        node.kill()
        node.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("names", [("alone",), ("first", "second")])
def test_a_node_shows_when_a_worker_of_its_clusters_is_gone(tmp_path: Path, names: tuple[str, ...]) -> None:
    """It leads them for months, and an alert reads this: as a primary shows it, for each of its models."""
    key, said, model = tmp_path / "key", tmp_path / "said", small_model(tmp_path)
    subprocess.run(command("cluster", "key", str(key)), check=True, capture_output=True)
    joins = [f"127.0.0.1:{port}" for port in unused_ports(len(names))]
    words = [f"{names[0]}={model}", "--cluster", joins[0], "--key", str(key), "--threads", "1"]
    if len(names) > 1:
        sections = [
            f"[[model]]\nname = '{name}'\nsource = '{model}'\n"
            f"cluster = '{join}'\nkey = '{key}'\nthreads = 1\n"
            for name, join in zip(names, joins, strict=True)
        ]
        (tmp_path / "node.toml").write_text("\n".join(sections))
        words = ["--config", str(tmp_path / "node.toml")]

    def usable(url: str) -> dict[str, float]:
        """The worker, by the models that it works for."""
        rows = samples(url)["pliant_cluster_member_usable"]
        return {row.labels["model"]: row.value for row in rows if row.labels["member"] == "w"}

    asked = command("node", *words, "--listen", "127.0.0.1:0", "--settle", "1ms", "--json")
    with said.open("wb") as errors:
        node = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=errors)
    try:
        assert node.stdout is not None
        more = [word for join in joins[1:] for word in ("--join", join)]
        worker = WorkerProcess("w", joins[0], key, model, tmp_path, *more)
        try:
            told = node.stdout.readline()
            assert told, said.read_text()
            url = json.loads(told)["url"]
            assert usable(url) == dict.fromkeys(names, 1.0)
            want = {family.name for family in metrics_of_primary(ClusterStatus("", "", "", ()))}
            assert {name for name in samples(url) if name.startswith("pliant_cluster_")} == want
        finally:
            worker.kill()
        until(lambda: usable(url) == dict.fromkeys(names, 0.0))
        node.terminate()
        assert node.wait(60) == 0, said.read_text()
    finally:
        node.kill()
        node.communicate()


def samples(url: str) -> dict[str, list[Sample]]:
    """What a page of metrics has, by families."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_a_node_over_a_cluster_bounds_its_own_memory(cli: Cli, tmp_path: Path) -> None:
    """--memory was dropped with --cluster: a bound that is no number was accepted."""
    cli("cluster", "key", tmp_path / "key")
    words = ("--cluster", "127.0.0.1:0", "--key", tmp_path / "key", "--memory", "much")
    refused = cli("node", small_model(tmp_path), *words)
    assert refused.exit_code == 1
    assert "'much'" in refused.stderr


def _address(said: Path, primary: "subprocess.Popen[bytes]") -> str:
    """Where it listens, once it says so."""
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s and primary.poll() is None:
        found = re.search(r"worker at (\S+)", said.read_text())
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError(f"it never listened: {said.read_text()}")


def test_a_plan_prints_as_a_page_here_and_in_python(cli: Cli, tmp_path: Path) -> None:
    """`print(session.plan)` printed a dataclass with every span of the program."""
    key, model = tmp_path / "key", small_model(tmp_path)
    cli("cluster", "key", str(key))
    with Cluster("127.0.0.1:0", key=key, name="kitchen", threads=1, shares="equal") as cluster:
        plan = cluster.open(model).explain(8, "1us")
    page = str(plan)
    assert page.startswith("mode: ")
    assert "of 1 µs, which it MISSES" in page
    assert re.search(r"^  kitchen +\d+ +\d+ +\d+ +[\d.]+ [KM]?B$", page, re.MULTILINE)
    assert re.search(r"^ +ms \|0 .*\|$", page, re.MULTILINE)
    assert "\n  - " in page
    alone = ("--listen", "127.0.0.1:0", "--key", key, "--wait", "0", "--partition", "equal", "--tokens", "8")
    shown = cli("cluster", "plan", model, *alone, "--name", "kitchen", "--latency", "1us", "--threads", "1")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[3:5] == page.splitlines()[3:5]


def test_a_reply_prints_in_three_lines_for_each_text(
    cli: Cli, cache: Path, tmp_path: Path, tiny_model: Callable[..., Path]
) -> None:
    """As `pliant run` prints its own: the answer, its time, what ran; the steps where they are asked for."""
    key, lines, feeds = tmp_path / "key", tmp_path / "lines.txt", tmp_path / "feeds.npz"
    cli("cluster", "key", str(key))
    lines.write_text("a good film\nnot it\n")
    np.savez(feeds, ids=np.array([[5, 6, 7]]))
    asked = ("cluster", "run", tiny_model("bert"), "--listen", "127.0.0.1:0", "--key", key, "--wait", "0")
    asked += ("--partition", "equal", "--threads", "1", "--name", "kitchen")
    of_file = cli(*asked, "--input", lines)
    assert of_file.exit_code == 0, of_file.output
    shown = of_file.stdout.splitlines()
    assert [line.rpartition("  <- ")[2] for line in shown[::3]] == ["a good film", "not it"]
    for timed, ran in zip(shown[1::3], shown[2::3], strict=True):
        assert re.fullmatch(r"  [\d.]+ .?s, [\d.]+ .?s of it the run, [\d.]+ .?s predicted; \d+ rows", timed)
        assert ran == "  mode ws on kitchen; exchanged 0 B"
    words = [str(word) for word in (*asked, "--input", "-", "--json")]
    of_stdin = CliRunner().invoke(app, words, input=lines.read_bytes(), env={"PLIANT_CACHE": str(cache)})
    assert [json.loads(line)["n_tokens"] for line in of_stdin.stdout.splitlines()] == [5, 4]
    of_arrays = cli(*asked, "--input", feeds, "--timeline")
    assert "; 3 rows\n" in of_arrays.stdout
    assert "predicted timeline:\n" in of_arrays.stdout
    assert "predicted beside measured" in of_arrays.stdout
    empty = cli(*asked, "--text", " ")
    assert (empty.exit_code, "give at least one word" in empty.output) == (1, True)
