"""Alerts and dashboard against a real Prometheus that scrapes nodes, a primary and a worker under load."""

import json
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

import pliant
from pliant.api.open_encoder import open_encoder
from pliant.api.open_endpoint import open_endpoint
from pliant.cli.cluster.process_metrics import primary_page, worker_page
from pliant.cluster.lead.open_member import MemberOptions, open_worker
from pliant.cluster.net.key import make_key, new_key
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.route.choice.energy import PowerModel
from pliant.run.process_memory import MemoryBudget
from pliant.serve.answers.answer_energy import AnswerEnergy
from tests.cluster.processes import PATIENT, WAIT_S, WorkerProcess, small_model
from tests.deploy.prometheus import DEPLOY, Prometheus, binary, scraping
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, reserved, running
from tests.serve.test_routing import until

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "pliant.json"
TEXT = "a charming and often affecting journey"
N_CLIENTS = 4
_NAME = re.compile(r"\b(?:pliant|process)_\w+")
_VARIABLES = {"$model": ".*", "$instance": ".*", "$__rate_interval": "1m"}


def expressions() -> dict[str, str]:
    """Those of the dashboard, by panel."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = {}
    for panel in panels:
        for target in panel["targets"]:
            expression = target["expr"]
            for name, value in _VARIABLES.items():
                expression = expression.replace(name, value)
            assert "$" not in expression, expression
            found[f"{panel['title']}: {target['legendFormat']}"] = expression
    return found


def test_promtool_accepts_configuration_and_alerts_and_their_tests_pass() -> None:
    """`alerts_test.yml` says when some of the alerts fire, and when they do not."""
    promtool, folder = binary("promtool"), DEPLOY / "prometheus"
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = subprocess.run([promtool, *words], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for group in yaml.safe_load(ALERTS.read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "ticket")
            assert rule["annotations"].keys() == {"summary", "action"}


@contextmanager
def cluster_pages(folder: Path) -> Iterator[tuple[str, str]]:
    """Where a primary that answered once and its worker are seen."""
    key, said = new_key(), []
    model = small_model(folder)
    source: EncoderSource = open_encoder(model, folder)
    with ExitStack() as ends:
        cluster = ends.enter_context(
            pliant.Cluster("127.0.0.1:0", key=key, threads=1, shares="equal", patience=PATIENT, cache=folder)
        )
        options = MemberOptions("worker", key, pliant.__version__, folder, 1, patience=PATIENT)
        address = cluster.address.removeprefix("tcp://")
        worker = ends.enter_context(open_worker(options, [address], [source]))
        ends.enter_context(primary_page("127.0.0.1:0", cluster, 1, said.append))
        ends.enter_context(worker_page("127.0.0.1:0", worker, said.append))
        cluster.wait(1, WAIT_S)
        session = cluster.open(model)
        session(session.sample(8))
        urls = [text.removeprefix("metrics at http://").removesuffix("/metrics") for text in said]
        yield urls[0], urls[1]


def test_a_primary_and_its_worker_say_how_they_stand(tmp_path: Path) -> None:
    """Neither serves requests over HTTP: a supervisor and Prometheus still see them."""
    with cluster_pages(tmp_path) as pages:
        texts = []
        for page in pages:
            assert httpx.get(f"http://{page}/v2/health/live", timeout=PATIENCE_S).json() == {"live": True}
            ready = httpx.get(f"http://{page}/v2/health/ready", timeout=PATIENCE_S)
            assert (ready.status_code, ready.json()) == (200, {"ready": True})
            assert httpx.get(f"http://{page}/other", timeout=PATIENCE_S).status_code == 404
            texts.append(httpx.get(f"http://{page}/metrics", timeout=PATIENCE_S).text)
    primary, worker = texts
    assert 'pliant_cluster_runs_total{outcome="ok"} 1.0' in primary
    assert 'pliant_cluster_member_usable{member="worker"} 1.0' in primary
    assert "pliant_worker_joined 1.0" in worker
    assert 'pliant_worker_runs_total{outcome="ok"} 1.0' in worker
    assert 'pliant_worker_runs_total{outcome="failed"} 0.0' in worker
    assert all("process_resident_memory_bytes" in text for text in texts)


@contextmanager
def asked_all_the_time(nodes: list[Running], models: list[str]) -> Iterator[Counter[str]]:
    """Clients that ask every node until the end; how many answers each node gave, complete at the end."""
    ended, answered, lock = threading.Event(), Counter[str](), threading.Lock()

    def ask(client: int) -> None:
        with httpx.Client(timeout=PATIENCE_S) as http:
            n = client
            while not ended.wait(0.02):  # else they would take the cores that Prometheus and the nodes need
                node, model = nodes[n % len(nodes)], models[n % len(models)]
                body = asking(TEXT, parameters={"deadline_s": 30})
                url = f"{node.url}/v2/models/{model}/infer"
                assert http.post(url, content=body).status_code == 200
                with lock:
                    answered[node.address] += 1
                n += 1

    with ThreadPoolExecutor(N_CLIENTS) as pool:
        clients = [pool.submit(ask, client) for client in range(N_CLIENTS)]
        try:
            yield answered
        finally:
            ended.set()
        for client in clients:
            client.result()


@pytest.mark.slow
def test_prometheus_finds_every_metric_of_dashboard_and_alerts(tmp_path: Path) -> None:
    """A dashboard that names a metric which no node has shows nothing when it is needed."""
    binary("prometheus")
    budget = MemoryBudget(20_000_000)
    models = ["sst2", "imdb-lstm"]
    power = AnswerEnergy(PowerModel("this device", 2.0, 3.0, ""))
    with ExitStack() as stack:
        pages = stack.enter_context(cluster_pages(tmp_path))
        both = [open_endpoint(name, memory=budget, threads=1) for name in models]
        up = stack.enter_context(running(both[0], both[1:], budget, name="up", energy=power))
        below = open_endpoint("sst2", threads=1)
        end = stack.enter_context(running(below, name="end", upstreams=(up.url,), energy=power))
        targets = [up.address, end.address, *pages]
        seen = stack.enter_context(scraping(tmp_path, targets))
        with asked_all_the_time([up, end], ["sst2"]) as answered:
            asked_other = httpx.post(
                f"{up.url}/v2/models/imdb-lstm/infer", content=asking(TEXT), timeout=PATIENCE_S
            )
            assert asked_other.status_code == 200
            until(lambda: seen.value("min(count_over_time(up[10m]))") >= 4, "it does not scrape")
            assert seen.query("max_over_time(up[10m]) == 0") == []  # single scrapes may be late
            until(lambda: all(rule["health"] == "ok" for rule in _rules(seen)), "rules are not evaluated")
            named = set(_NAME.findall(ALERTS.read_text()))
            for title, expression in expressions().items():
                named |= set(_NAME.findall(expression))
                until(lambda expression=expression: seen.query(expression), f"{title} shows nothing")  # type: ignore[misc]
            missing = named - set(seen.get("label/__name__/values"))
            assert not missing
        for address, n in answered.items():
            counted = (
                f'sum(pliant_responses_total{{instance="{address}",path=~".*/sst2/infer",status="200"}})'
            )
            if address == end.address:  # the other one's also count what this one passed on
                until(lambda: seen.value(counted) == n, "Prometheus and the clients count differently")  # noqa: B023
        assert len(seen.query("pliant_model_info")) == 3


def test_alerts_fire_for_a_node_that_has_gone_and_clear_once_it_is_back(tmp_path: Path) -> None:
    """Who operates hears of it, and of its end; the node below answers by itself meanwhile."""
    binary("prometheus")

    with reserved() as where, ExitStack() as stack:
        above = {"listen": where, "name": "up"}
        first = stack.enter_context(ExitStack())
        up = first.enter_context(running(Upper(), **above))
        end = stack.enter_context(running(Upper(), name="end", upstreams=(up.url,), **fixed((1, 1.0))))
        seen = stack.enter_context(scraping(tmp_path, [up.address, end.address], is_patient=False))
        until(lambda: seen.value("sum(up)") == 2 and seen.value("min(pliant_upstream_ready)") == 1)
        assert firing(seen) == set()
        first.close()
        assert end.post("a film").status_code == 200
        until(
            lambda: firing(seen) == {"PliantDown", "PliantUpstreamIsOut"}, "no alert of a node that has gone"
        )
        stack.enter_context(running(Upper(), **above))
        until(lambda: firing(seen) == set(), "alerts of a node that is back")


@pytest.mark.slow
def test_the_alert_for_missing_workers_fires_at_a_node_that_leads_them(tmp_path: Path) -> None:
    """Such a node is the primary that runs for months; the page of `pliant cluster` ends with its run."""
    binary("prometheus")
    key, model = tmp_path / "key", small_model(tmp_path)
    make_key(key)
    with ExitStack() as stack:
        cluster = stack.enter_context(
            pliant.Cluster(
                "127.0.0.1:0", key=key, threads=1, shares="equal", patience=PATIENT, cache=tmp_path
            )
        )

        def start_worker() -> WorkerProcess:
            worker = WorkerProcess("w", cluster.address, key, model, tmp_path)
            stack.callback(worker.kill)
            cluster.wait(1, WAIT_S)
            return worker

        worker = start_worker()
        node = stack.enter_context(running(cluster.open(model), (Upper(),), name="here"))
        seen = stack.enter_context(scraping(tmp_path, [node.address], is_patient=False))
        until(lambda: seen.value("min(pliant_cluster_member_usable)") == 1)
        assert firing(seen) == set()
        for title, expression in expressions().items():
            if title.startswith("Cluster: "):
                until(lambda expression=expression: seen.query(expression), f"{title} shows nothing")  # type: ignore[misc]
        worker.kill()
        until(lambda: firing(seen) == {"PliantWorkersAreMissing"}, "no alert of a worker that has gone")
        start_worker()
        until(lambda: firing(seen) == set(), "an alert of a worker that is back")


def firing(seen: Prometheus) -> set[str]:
    """The names of alerts."""
    return {one["labels"]["alertname"] for one in seen.get("alerts")["alerts"] if one["state"] == "firing"}


def _rules(seen: Prometheus) -> list[dict[str, str]]:
    return [rule for group in seen.get("rules")["groups"] for rule in group["rules"]]
