"""The command line on a tiny model; one cache for all tests, so that it is profiled once."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pliant.cli.app import app

Cli = Callable[..., Result]


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(cache: Path) -> Cli:
    """`cli("run", model, ...)` is the result of that command line."""

    def invoke(*words: object) -> Result:
        result: Result = CliRunner().invoke(app, [str(w) for w in words], env={"PLIANT_CACHE": str(cache)})
        return result

    return invoke


@pytest.fixture
def as_json(cli: Cli) -> Callable[..., Any]:
    """`as_json("run", model, ...)` is what `--json` prints; fails when the command does."""

    def invoke(*words: object) -> Any:
        result = cli(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return invoke


@pytest.fixture(scope="session")
def model(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", widths=(2, 4))
