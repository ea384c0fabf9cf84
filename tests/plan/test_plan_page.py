"""A plan prints as a page that a person reads, and a notebook shows it."""

import sys
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from pliant.plan.plan import NO_TARGET_S, Budget, Plan
from pliant.plan.submodel.accuracy import AccuracyInterval
from pliant.plan.submodel.search import plan
from tests.plan.test_plan import COSTS, IMPORTANCE, SHAPE


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(SHAPE, COSTS, Budget(0.012, 200_000, 4_000_000), IMPORTANCE)


def test_a_plan_prints_as_a_page(made: Plan, golden: Callable[[str, str], None]) -> None:
    """`print(model.plan)` and `pliant plan` are one text: units, counts and reasons, no dataclass."""
    known = replace(made, expected_accuracy=0.89, accuracy_interval=AccuracyInterval(0.853, 0.919))
    golden("plan_page.txt", f"{known}")


def test_a_plan_that_is_late_says_so(made: Plan) -> None:
    """Under best effort a plan may miss its target: the page must not read as a promise."""
    assert "which it MISSES" in str(replace(made, meets_target=False))
    assert "MISSES" not in str(made)


def test_without_a_target_nothing_is_measured_against_one() -> None:
    """The hour that stands for no target was shown as one: 3.6e+03 s, and IO budgets of as much."""
    most = plan(SHAPE, COSTS, Budget(NO_TARGET_S, 200_000, 4_000_000), IMPORTANCE)
    for text in (str(most), repr(most), most._repr_html_()):
        assert "predicted of" not in text
        assert "3.6e" not in text
        assert "3600" not in text
        assert "AIB" not in text
    assert "no target was given" in str(most)


def test_a_console_shows_one_line(made: Plan) -> None:
    """The representation of some dozen fields filled a screen with numbers."""
    assert repr(made) == f"<Plan ours: {made.n}x{made.width} of 6x12, {made.latency_s * 1e3:.3g} ms of 12 ms>"


def test_a_notebook_shows_the_picture_inline(made: Plan) -> None:
    """A notebook needs no file; the element must parse as XML beside the page's other elements."""
    pytest.importorskip("matplotlib", reason="an extra")
    page = made._repr_html_()
    svg = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "<?xml" not in page


def test_a_notebook_without_matplotlib_shows_the_table(made: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """matplotlib is an extra: the same facts stand in a table, with what could be markup escaped."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = ElementTree.fromstring(replace(made, name="<b>&")._repr_html_().replace("<br>", "<br/>"))
    table = page.find("table")
    assert table is not None
    rows = [["".join(cell.itertext()) for cell in row] for row in table]
    assert [row[0] for row in rows] == ["layer", *map(str, made.layers)]
    assert "planner: <b>&" in "".join(page.itertext())
    assert "io |" in "".join(page.itertext())


def test_neighbouring_slices_of_equal_bits_are_counted(made: Plan) -> None:
    """Twelve equal numbers in a row hide the one that differs."""
    assert made.width == 6
    bits, held = (*made.bits[:-1], (32, 32, 6, 6, 6, 2)), (*made.held[:-1], (0, 0, 2, 2, 6, 2))
    assert "2 x 32, 2 x 6(2), 6*, 2*" in str(replace(made, bits=bits, held=held))
