"""The command line on a model that was never made elastic."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli


@pytest.fixture(scope="session")
def ordinary(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", n_layers=4, widths=(4,))


SLOW = ("--latency", "3ms", "--length", "8", "--dilate-compute", "1000")


def test_an_infeasible_target_of_an_ordinary_model_is_an_error_with_the_ways_out(
    cli: Cli, ordinary: Path
) -> None:
    """It once answered with one layer of twelve, and called the target met."""
    for words in (("run", ordinary, "--text", "a good film"), ("plan", ordinary)):
        failed = cli(*words, *SLOW)
        assert failed.exit_code != 0
        for part in ("no submodel answers within 3 ms", "pliant stretch", "--depths any"):
            assert part in " ".join(failed.output.split())


def test_depths_any_is_told_in_the_plan_the_reply_and_their_json(
    cli: Cli, as_json: Callable[..., Any], ordinary: Path, tmp_path: Path
) -> None:
    """Whoever reads the output later must see that layers were left out untrained."""
    asked = (*SLOW, "--best-effort", "--depths", "any")
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na good film\t1\n")
    made = as_json("plan", ordinary, *asked)
    assert (made["cut"], len(made["layers"])) == ("untrained", 1)
    assert as_json("run", ordinary, "--text", "a good film", *asked)["cut"] == "untrained"
    seen = as_json("eval", ordinary, tmp_path / "dev.tsv", *asked)
    assert seen["submodels_run"] == [{"submodel": [1, 4], "cut": "untrained", "n": 1}]
    assert "(depths: any)" in cli("plan", ordinary, *asked).stdout
    assert "--depths any" in cli("run", ordinary, "--text", "a good film", *asked).stdout
