"""A real Prometheus for tests, on a free port of loopback; skips where its binary is missing."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.serve.nodes import PATIENCE_S
from tests.serve.test_routing import until

DEPLOY = Path(__file__).parents[2] / "deploy"
_LISTENS = re.compile(r'msg="Listening on" address=(\S+)')


def binary(name: str) -> str:
    """Where the program lies, or the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is missing: apt-get install prometheus")
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One that scrapes, at `url`."""

    url: str

    def get(self, path: str, **params: str) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Any]:
        """The series of an instant query."""
        found: list[Any] = self.get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float:
        """Of a query with one series; -1 where there is none yet."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else -1.0


@contextmanager
def scraping(folder: Path, targets: Sequence[str], is_patient: bool = True) -> Iterator[Prometheus]:
    """A Prometheus with the alerts of `deploy`; it scrapes `targets` (HOST:PORT) several times a second.

    One that is not patient has alerts fire as soon as their condition holds.
    """
    program = binary("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "500ms"}
    alerts = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
    for rule in alerts["groups"][0]["rules"] if not is_patient else ():
        rule.pop("for", None)
    (folder / "alerts.yml").write_text(yaml.safe_dump(alerts))
    config["rule_files"] = ["alerts.yml"]
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    log = folder / "prometheus.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=stream,
            stderr=stream,
        )
        try:
            until(lambda: process.poll() is not None or _LISTENS.search(log.read_text()))
            found = _LISTENS.search(log.read_text())
            assert found is not None, log.read_text()
            yield Prometheus(f"http://{found[1]}")
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
