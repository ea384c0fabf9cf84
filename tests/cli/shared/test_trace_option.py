"""`--trace` where nothing can be written."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli

_VERBS = (
    ("run", "sst2", "--latency", "5s", "--text", "a"),
    ("cluster", "run", "random:no-such", "--text", "a"),
    ("bench", "no-such.onnx"),
)


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("where", ["missing/trace.json", "."])
def test_a_trace_that_cannot_be_written_is_refused_before_the_run(
    cli: Cli, tmp_path: Path, verb: tuple[str, ...], where: str
) -> None:
    """A run may take minutes and workers; neither model nor key is looked at first."""
    done = cli(*verb, "--trace", tmp_path / where)
    assert done.exit_code == 1
    assert "the trace cannot be written" in done.stderr
    assert "no-such" not in done.stderr


def test_looking_whether_a_trace_can_be_written_leaves_what_is_there(cli: Cli, tmp_path: Path) -> None:
    """A run that fails afterwards must not cost the trace of the one before, nor leave an empty one."""
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text("{}")
    for path in (old, new):
        assert cli("cluster", "run", "random:no-such", "--text", "a", "--trace", path).exit_code == 1
    assert old.read_text() == "{}"
    assert not new.exists()
