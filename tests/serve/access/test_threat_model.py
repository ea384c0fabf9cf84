"""docs/security.md says what the code does: its table of roles is that of the code, and its tests exist."""

import re
from pathlib import Path

import pytest

from pliant.serve.access.roles import EVERYBODY, RULES, Role, RouteRule

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- roles -->\n", "<!-- end of roles -->"


def rows() -> str:
    """The table of RULES, in Markdown."""
    lines = [f"| route | {' | '.join(Role)} | where there are no tokens |", "|---|---|---|---|---|"]
    return "\n".join([*lines, *map(_row, RULES)]) + "\n"


def _row(rule: RouteRule) -> str:
    may = ["yes" if rule.roles == EVERYBODY or role in rule.roles else "" for role in Role]
    without = "nobody" if rule.is_guarded else "everybody"
    return f"| `{rule.method} {rule.path}` | {' | '.join(may)} | {without} |"


def test_the_table_of_roles_is_that_of_the_code(request: pytest.FixtureRequest) -> None:
    """`--update-golden` writes it anew."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    found, _, after = rest.partition(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}{BEGIN}{rows()}{END}{after}", encoding="utf-8")
        return
    assert found == rows(), "docs/security.md is not what roles.py says; look, then run --update-golden"


def test_every_line_of_the_threat_model_names_tests_that_exist() -> None:
    """Each row of the table of threats ends with the tests that show what it claims."""
    threats = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| T")]
    assert len(threats) >= 10
    for line in threats:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", line)
        assert named, f"no test stands behind: {line}"
        for path, test in named:
            text = (ROOT / path).read_text(encoding="utf-8")
            assert re.search(rf"^(?:async )?def {test}\(", text, re.MULTILINE), f"{path} has no {test}"
