"""`--memory` of verbs: what is bounded is told, and too little is an error that names the least."""

import json
import re

from typer.testing import CliRunner

from pliant.cli.app import app

RUN = ("run", "imdb-lstm", "--text", "a fine film", "--threads", "1", "--json")


def test_run_tells_the_bound_and_the_parts_within_it() -> None:
    """Machines read what is measured beside what was predicted."""
    done = CliRunner().invoke(app, [*RUN, "--memory", "8MB"])
    assert done.exit_code == 0, done.output
    memory = json.loads(done.stdout)["memory"]
    assert memory["budget_bytes"] == 8_000_000
    assert sum(part["measured_bytes"] for part in memory["parts"]) <= 8_000_000
    assert {"name", "predicted_bytes", "measured_bytes"} == set(memory["parts"][0])


def test_too_little_names_the_least_which_works() -> None:
    """To the byte: rounded down, what is named would be refused."""
    refused = CliRunner().invoke(app, [*RUN, "--memory", "1KB"])
    assert refused.exit_code != 0
    named = re.search(r"Give at least (\d+) bytes", f"{refused.output}{refused.exception}")
    assert named is not None, refused.output
    assert CliRunner().invoke(app, [*RUN, "--memory", named[1]]).exit_code == 0
