"""What `pliant cluster plan --explain` says, held against the plans and the devices it speaks of."""

from dataclasses import replace

from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.explain_partition import explain, misfits
from pliant.cluster.lead.margin import Margins
from pliant.cluster.lead.predict import predict
from pliant.cluster.watch.adapt import Topology
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.quantities import format_bytes, format_seconds
from tests.plan.clusters import cluster
from tests.plan.splits import bert

SPEC = bert()
LEAST_GAIN = Margins().least_gain


def _solved(seed: int = 1, shares: str = "best", **free: int):
    devices, links = cluster(seed, 3)
    for name, n_bytes in free.items():
        devices[name] = replace(devices[name], free_bytes=n_bytes)
    made = make_chooser("auto", shares)(SPEC, 8, devices, links, "d0")  # type: ignore[arg-type]
    return predict(SPEC, made, Topology(devices, links))


def test_every_mode_is_told_with_its_time_and_its_terms() -> None:
    """Who asks why wants to see what else there was, in seconds."""
    solved = _solved()
    said = explain(SPEC, solved, "d0", LEAST_GAIN)
    assert said[0].startswith(f"chosen, mode {solved.partition.mode} on ")
    assert format_seconds(solved.seconds) in said[0]
    for mode in ("ws", "1d", "2d"):
        (line,) = (one for one in said if one.startswith(f"the quickest found, mode {mode} on "))
        assert "of it compute on d" in line
        assert "waits for exchanges" in line
    assert any(one.startswith("best device alone: d") for one in said)
    assert any("Hepti 4.3" in one for one in said)


def test_the_gap_is_between_nothing_and_everything() -> None:
    """No plan takes less than the bound, so no more than all can be saved."""
    last = explain(SPEC, _solved(), "d0", LEAST_GAIN)[-1]
    assert "is predicted to take less than" in last
    assert 0 <= int(last.split("at most ")[1].split(" %")[0]) < 100


def test_a_device_with_too_little_memory_is_named_with_both_sizes() -> None:
    """Memory is the reason that nobody sees from outside."""
    said = explain(SPEC, _solved(d2=1000), "d0", LEAST_GAIN)
    (line,) = (one for one in said if one.startswith("d2 has"))
    assert format_bytes(1000) in line
    assert "too little for the whole model" in line


def test_equal_shares_that_do_not_fit_are_flagged() -> None:
    """Equal shares know no memory: the value, the limit and the next move stand beside the plan."""
    solved = _solved(shares="equal", d1=1000)
    need = weight_bytes(SPEC, solved.partition)
    (line,) = misfits(need, solved.topology)
    assert line.startswith(f"d1 needs {format_bytes(need['d1'])}")
    assert format_bytes(1000) in line
    assert "--partition best" in line
    fitting = _solved()
    assert not misfits(weight_bytes(SPEC, fitting.partition), fitting.topology)


def test_a_split_that_saves_too_little_is_said_to() -> None:
    """One device runs it all although a split is quicker: without the reason that looks like a mistake."""
    for mode, solved in ("1d", _solved(0, d2=1000)), ("ws", _solved(10)):
        assert len(solved.partition.participants) == 1
        said = explain(SPEC, solved, "d0", LEAST_GAIN)
        (line,) = (one for one in said if "by prediction, and predictions of splits err" in one)
        assert f"run from {100 * LEAST_GAIN[mode]:.0f} % on" in line
        assert f"with --mode {mode}" in line
