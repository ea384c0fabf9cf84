"""ONNX's backend cases hold for every operator that docs/operators.md does not list as unsupported."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import onnx.defs
import pytest

from pliant.compiler.rules.rules import RULES
from pliant.models.onnx.bind.onnx_host import HOST
from pliant.models.onnx.onnx_adapt import RENAMED
from pliant.models.onnx.onnx_static import STATIC_OPERATORS
from tests.conformance.cases import CaseOutcome, run_in_processes

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "operators.md"
KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
_BLOCK = re.compile(r"(<!-- generated: .* -->\n)(.*)(<!-- end -->)", re.DOTALL)


@pytest.fixture(scope="module")
def outcomes() -> list[CaseOutcome]:
    """All cases, run once."""
    return run_in_processes(KINDS)


def test_every_case_of_a_supported_operator_passes(outcomes: list[CaseOutcome]) -> None:
    """The page of unsupported operators is the only excuse: silence would hide a wrong kernel."""
    operators, types, names = (
        _table(section) for section in ("Not supported", "Element types", "Single cases")
    )
    failed = []
    for outcome in outcomes:
        is_left_out = any(fnmatch(outcome.name, pattern) for pattern in names)
        excused = (
            any(fnmatch(op, pattern) for op in outcome.operators for pattern in operators)
            or bool(types.intersection(outcome.element_types))
            or is_left_out
        )
        if (outcome.wrong and not is_left_out) or (outcome.refused and not excused):
            failed.append(f"{outcome.name}: {outcome.refused or outcome.wrong}")
    assert not failed, f"{len(failed)} cases fail:\n" + "\n".join(failed)


def test_what_is_listed_as_unsupported_is_refused(outcomes: list[CaseOutcome]) -> None:
    """The page must not name what works; each entry that all cases of pass has to go."""
    passing: dict[str, set[bool]] = {}
    for outcome in outcomes:
        for op in outcome.operators if len(outcome.operators) == 1 else ():
            passing.setdefault(op, set()).add(outcome.passed)
    wrong = [op for op in _table("Not supported") if op in RULES or passing.get(op) == {True}]
    assert not wrong, f"docs/operators.md lists {wrong} as unsupported, but they work"


def test_the_aim_is_met(outcomes: list[CaseOutcome]) -> None:
    """At least 110 operators, and 1,800 of ONNX's node cases."""
    passed = [outcome for outcome in outcomes if outcome.passed]
    assert sum(outcome.kind == "node" for outcome in passed) >= 1800
    assert len({op for outcome in passed for op in outcome.operators}) >= 110


def test_the_page_names_every_supported_operator(request: pytest.FixtureRequest) -> None:
    """Readers look there first; the list is made from the rules, the importer and ONNX's own functions."""
    text = PAGE.read_text(encoding="utf-8")
    wanted = _BLOCK.sub(lambda m: m[1] + _supported() + m[3], text)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(wanted, encoding="utf-8")
    assert text == wanted or request.config.getoption("--update-golden"), "run with --update-golden"


def _supported() -> str:
    onnx_names = {s.name for s in onnx.defs.get_all_schemas() if s.domain == ""}
    with_kernel = sorted(set(RULES) & onnx_names)
    folded = sorted({*STATIC_OPERATORS, *RENAMED} - set(with_kernel))
    functions = sorted(
        s.name
        for s in onnx.defs.get_all_schemas()
        if s.domain == "" and (s.has_function or s.has_context_dependent_function)
    )
    unsupported = _table("Not supported")
    as_function = [f for f in functions if f not in with_kernel and f not in {*unsupported, *folded, *HOST}]
    on_host = sorted(HOST)
    total = len(with_kernel) + len(folded) + len(as_function) + len(on_host)
    return "\n".join(
        [
            f"{total} operators: {len(with_kernel)} with kernels, {len(as_function)} as functions of others, "
            f"{len(on_host)} on the host, {len(folded)} gone once a model is compiled.",
            "",
            f"With kernels: {_names(with_kernel)}.",
            "",
            f"Gone when compiled: {_names(folded)}.",
            "",
            f"As functions: {_names(as_function)}.",
            "",
            f"On the host: {_names(on_host)}.",
            "",
        ]
    )


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(heading: str) -> set[str]:
    """First cells of the table under a heading of the page."""
    return set(_rows(heading))


def _rows(heading: str) -> Iterator[str]:
    inside = False
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            inside = line.removeprefix("## ").startswith(heading)
        elif inside and (found := re.match(r"\| `([^`]+)` \|", line)):
            yield found[1]
