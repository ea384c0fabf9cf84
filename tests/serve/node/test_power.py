"""What a node is told of its battery, or measures, and the inputs that stay or go for it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pliant.errors import NodeError
from pliant.ir.endpoint import Request
from pliant.route.choice.energy import LTE, PowerModel
from pliant.route.choice.objective import ENERGY, TIME, Objective
from pliant.serve.node.power import measure_power, read_power, read_radio
from pliant.system import EnergyMeter
from tests.serve.models import Upper
from tests.serve.nodes import fixed, running
from tests.serve.test_routing import HONEST, LATE, answer_of, explained, target_of, until

FRUGAL = PowerModel("frugal", 0.0, 1e-3, "made up")
"""Half a joule for LATE; LTE waits at 1.3 W for HONEST."""


@pytest.mark.parametrize(
    ("objective", "is_kept"), [(TIME, False), (ENERGY, True), (Objective(1.0, 1e3), True)]
)
def test_an_input_stays_where_its_joules_count_for_more_than_its_time(
    objective: Objective, is_kept: bool
) -> None:
    """CRIME 4.4: 500 s here at 1 mW, or 30 s above, waited for at 1.3 W."""
    with running(Upper(mark="@up"), **fixed(*HONEST)) as up:
        options: dict[str, Any] = fixed(*LATE, power=FRUGAL, radio=LTE)
        with running(Upper(mark="@end"), upstreams=(up.url,), objective=objective, **options) as end:
            until(lambda: explained(end, 400)["candidates"][1]["total_s"] is not None)
            assert target_of(end, 400) == ("local" if is_kept else up.url)
            assert answer_of(end, "x") == ("X@end" if is_kept else "X@up")
            here, above = explained(end, 400)["candidates"]
            assert here["energy_j"] == pytest.approx(0.5)
            assert above["energy_j"] >= 30 * LTE.waiting_W * (1 - 1e-9)  # the link may take no time


def test_watts_are_a_number_that_can_be() -> None:
    """`--power`."""
    assert read_power("1.5", Upper()).compute_W == 1.5
    for text in ("", "much", "-1", "nan", "inf"):
        with pytest.raises(NodeError, match="watts"):
            read_power(text, Upper())


def test_a_radio_is_a_name_or_a_file(tmp_path: Path) -> None:
    """`--radio`: power models are data."""
    assert read_radio("lte") is LTE
    path = tmp_path / "radio.json"
    path.write_bytes(msgspec.json.encode(asdict(LTE)))
    assert read_radio(str(path)) == LTE
    for content in (b"{}", b"nonsense", msgspec.json.encode({**asdict(LTE), "waiting_W": -1.0})):
        path.write_bytes(content)
        with pytest.raises(NodeError, match="not a known radio"):
            read_radio(str(path))
    path.write_bytes(msgspec.json.encode({**asdict(LTE), "tail_w": 1.0}))
    with pytest.raises(NodeError, match=r"no radio has: tail_w\. A radio has name, .*, tail_W"):
        read_radio(str(path))
    with pytest.raises(NodeError, match="lte"):
        read_radio("umts")


def test_power_is_what_the_counters_say_at_work_over_idle(tmp_path: Path) -> None:
    """A machine that draws 2 W idle and 5 W while it answers, by two counters of which one starts anew."""
    now_s = 0.0
    files = [tmp_path / "a", tmp_path / "b"]
    limit_uj = 5_000_000
    counts_uj = [4_500_000, 0]

    def passes(seconds: float, watts: float) -> None:
        nonlocal now_s
        now_s += seconds
        for k, file in enumerate(files):
            counts_uj[k] += round(seconds * watts / 2 * 1e6)
            file.write_text(str(counts_uj[k] % limit_uj))

    passes(0.0, 0.0)
    found = measure_power(
        [EnergyMeter(file.name, file, limit_uj) for file in files],
        lambda request: passes(0.3, 5.0),
        [Request(8, text="x")],
        lambda: now_s,
        lambda seconds: passes(seconds, 2.0),
    )
    assert (found.idle_W, found.compute_W) == (pytest.approx(2.0), pytest.approx(3.0))
    assert found.source == "a, b"


def test_a_machine_without_counters_says_so() -> None:
    """Most virtual machines."""
    with pytest.raises(NodeError, match="RAPL"):
        measure_power((), lambda request: None, [])
