"""Runs whose world changes in their middle: memory, links and pace, on emulated devices."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.cluster.control.timeouts import ClusterTimeouts
from pliant.cluster.lead.choose_partition import make_chooser
from pliant.cluster.lead.survey import survey_devices
from pliant.cluster.member.local_stage_builder import SPARE_BYTES
from pliant.cluster.session.cluster_details import ClusterDetails
from pliant.ir.capability import Capability, Links
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Exchange, value
from pliant.ir.reply import Reply
from pliant.models.encoder.encoder_spec import EncoderSpec
from pliant.plan.split.split_program import layer_segment
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.system.linux.control_groups import used_bytes
from testbed import DeviceSpec, rate, why_not
from testbed.hepti import Bed, open_bed
from tests.cluster.boundaries import Act, at_boundaries
from tests.cluster.processes import CONFIG

pytestmark = pytest.mark.slow

TOLERANCE = 1e-4
N_LAYERS, TOKENS = 12, 64
MANY_LAYERS = 24  # how soon a drift is believed differs from run to run
SLOWER = 60.0  # a layer takes about 0.1 s, most of it its products: so little is fixed that a split pays
PATIENCE = ClusterTimeouts(
    silence_s=10.0, least_s=60.0
)  # as long as one waits for weights that another one loads


def _model(folder: Path, hidden: int, n_layers: int) -> str:
    sizes = {"hidden_size": hidden, "intermediate_size": 4 * hidden, "num_attention_heads": 8}
    path = folder / "deep.json"
    path.write_text(
        json.dumps(CONFIG | sizes | {"num_hidden_layers": n_layers, "max_position_embeddings": 64})
    )
    return f"random:{path}"


def _say(file: Path, text: object) -> None:
    """At once: a device may be reading."""
    new = file.with_suffix(".new")
    new.write_text(f"{text}")
    os.replace(new, file)


@pytest.fixture
def by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are equal shares; the mode follows Hepti's rule. The world's noise moves nothing else.

    Nor does it say whether a change pays: how long weights load is the machine's affair. A drift of the times
    is no reason to solve again: it would hide the memory's.
    """
    monkeypatch.setattr("pliant.api.open_cluster.make_chooser", lambda *asked: _by_memory)
    for module in ("adaptive_planner", "predict"):
        monkeypatch.setattr(f"pliant.cluster.lead.{module}.is_worthwhile", lambda *seconds: True)
    monkeypatch.setattr("pliant.cluster.watch.adapt.THRESHOLD", float("inf"))


@pytest.fixture
def equally_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both devices count as the quicker was measured, as they are equal; what else ran moves nothing.

    One that a bad moment made seem slow would be left out, and no run would tell more of it. For the same
    reason a device that is left out is soon tried again.
    """

    def survey(*asked: Any) -> dict[str, Capability]:
        found = survey_devices(*asked)
        quickest = min(found.values(), key=lambda one: one.cycles_per_flop / one.frequency_Hz)
        return {name: replace(quickest, free_bytes=one.free_bytes) for name, one in found.items()}

    monkeypatch.setattr("pliant.cluster.watch.topology_tracker.survey_devices", survey)
    monkeypatch.setattr("pliant.cluster.watch.retry_backoff.FIRST_S", 0.2)


def _by_memory(
    spec: EncoderSpec, tokens: int, capabilities: Mapping[str, Capability], links: Links, primary: str
) -> Partition:
    alone = Partition("ws", primary, (Share(primary, spec.n_heads, tokens),), tokens)
    whole = weight_bytes(spec, alone)[primary]
    is_ample = all(device.free_bytes >= whole for device in capabilities.values())
    return make_chooser("ws" if is_ample else "1d", "equal")(spec, tokens, capabilities, links, primary)


@contextmanager
def _bed(
    folder: Path,
    link: str,
    *words: str,
    hidden: int = 96,
    n_layers: int = N_LAYERS,
    slower: float = 1.0,
    **options: Any,
) -> Iterator[Bed]:
    """Two equal devices, `desk` leading `wall`, whose worker is given `words` too."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    specs = [DeviceSpec(name, slower=slower, bandwidth_Bps=rate(link)) for name in ("desk", "wall")]
    words = words or ("--dilate-compute", str(slower))
    options = {"patience": PATIENCE} | options
    with open_bed(specs, _model(folder, hidden, n_layers), folder, words={"wall": words}, **options) as bed:
        yield bed


def _free(bed: Bed) -> int:
    """Of `wall`'s memory, as the primary knows it."""
    (wall,) = bed.cluster.status()
    return wall.free_bytes


def _modes(reply: Reply[ClusterDetails]) -> list[str]:
    """Of the layers, each different from the one before."""
    modes = [partition.mode for partition in reply.details.partitions[1:-1]]
    return [mode for mode, before in zip(modes, ["", *modes], strict=False) if mode != before]


@pytest.mark.usefixtures("by_memory")
@pytest.mark.parametrize("again", [8.0, 1.1], ids=["beside", "in place"])
def test_a_run_goes_from_whole_weights_to_tiles_in_place_and_back(again: float, tmp_path: Path) -> None:
    """Hepti 4.2 and Figure 7: 1D-tiled needs less memory, WS less time; both within one inference."""
    memory = tmp_path / "memory"
    _say(memory, 1 << 30)
    with _bed(tmp_path, "2Mbit", "--memory", f"@{memory}") as bed:
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        before = bed.session(feeds)
        spec = bed.session.encoder.spec
        whole = max(weight_bytes(spec, alone.details.partitions[-1]).values())
        need = weight_bytes(spec, before.details.partitions[-1])["wall"]
        short, ample = int(0.9 * need), int(again * whole)
        falls = Act(3, "ws", lambda: _say(memory, short), lambda: _free(bed) == short)
        returns = Act(3, "1d", lambda: _say(memory, ample), lambda: _free(bed) == ample)
        with at_boundaries(bed.cluster, falls, returns):
            reply = bed.session(feeds)
    assert not reply.details.faults
    assert _modes(before) == ["ws"]
    assert _modes(reply) == ["ws", "1d", "ws"]
    switches = reply.details.switches
    assert [s.reason for s in switches] == ["memory of wall is short", "memory of wall is back"]
    assert switches[0].segment == 3, "it stopped as soon as it was told"
    tiled = next(partition for partition in reply.details.partitions if partition.mode == "1d")
    assert weight_bytes(spec, tiled)["wall"] <= short
    both = weight_bytes(spec, before.details.partitions[-1], tiled)["wall"]
    assert short < both, "there was room for both: it need not have been in place"
    assert (both <= ample) == (again > 2)
    for one in (before, reply):
        np.testing.assert_allclose(one.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


@pytest.mark.usefixtures("by_memory")
def test_a_run_goes_on_where_no_plan_needs_less(tmp_path: Path) -> None:
    """It looked once: a plan that is too large for what is said, and runs, is better than none."""
    memory = tmp_path / "memory"
    _say(memory, 1 << 30)
    with _bed(tmp_path, "2Mbit", "--memory", f"@{memory}") as bed:
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        falls = Act(3, "ws", lambda: _say(memory, 1000), lambda: _free(bed) == 1000)
        with at_boundaries(bed.cluster, falls):
            reply = bed.session(feeds)
    assert not reply.details.faults
    assert _modes(reply) == ["ws", "1d"]
    assert [s.segment for s in reply.details.switches] == [3]
    np.testing.assert_allclose(reply.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


@pytest.mark.usefixtures("by_memory")
def test_a_worker_whose_group_is_narrowed_gives_up_memory_and_lives(tmp_path: Path) -> None:
    """The kernel ends whoever holds old and new weights together; s is what the group leaves free."""
    with _bed(tmp_path, "8Mbit", hidden=384) as bed:
        wall = bed.network["wall"]
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        before = bed.session(feeds)
        spec = bed.session.encoder.spec
        running = wall.processes
        whole = max(weight_bytes(spec, alone.details.partitions[-1]).values())
        need = weight_bytes(spec, before.details.partitions[-1])["wall"]
        room = SPARE_BYTES // 4
        narrows = Act(
            3, "ws", lambda: wall.set_memory(used_bytes(wall.group) + room), lambda: _free(bed) < need
        )
        widens = Act(3, "1d", lambda: wall.set_memory(None), lambda: _free(bed) > 2 * whole)
        with at_boundaries(bed.cluster, narrows, widens):
            reply = bed.session(feeds)
        assert wall.processes == running
    assert not reply.details.faults
    assert _modes(before) == ["ws"]
    assert _modes(reply) == ["ws", "1d", "ws"]
    tiled = next(partition for partition in reply.details.partitions if partition.mode == "1d")
    assert weight_bytes(spec, tiled)["wall"] > 2 * room, "the new weights would have fit beside the old"
    for one in (before, reply):
        np.testing.assert_allclose(one.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


def _shared(bed: Bed, feeds: Mapping[str, np.ndarray]) -> Reply[ClusterDetails]:
    """A run that both devices are in to its end."""
    for _ in range(10):
        reply = bed.session(feeds)
        if all(len(partition.participants) == 2 for partition in reply.details.partitions):
            return reply
    raise AssertionError(f"one device works alone: {bed.session.explain(TOKENS)}")


def _exchanged_bytes(bed: Bed, partition: Partition) -> int:
    """What all devices send one another in a layer."""
    steps = layer_segment(bed.session.encoder.spec, partition, 0).steps
    return sum(value(step.work.n_bytes, {}) for step in steps if isinstance(step.work, Exchange))


def _rows(reply: Reply[ClusterDetails]) -> list[int]:
    """Of `wall`, layer by layer."""
    return [partition.share("wall").rows for partition in reply.details.partitions[1:-1]]


@pytest.mark.alone
@pytest.mark.usefixtures("equally_measured")
def test_a_plan_moves_when_bandwidth_falls_within_a_run(tmp_path: Path) -> None:
    """Figure 7's second segment: what travels is seen to be late, and the plan sends less."""
    with _bed(tmp_path, "400Mbit", hidden=384, n_layers=MANY_LAYERS, slower=SLOWER, mode="ws") as bed:
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        before = _shared(bed, feeds)

        def narrow() -> None:
            for device in bed.network:
                bed.network.set_bandwidth(device.name, rate("1Mbit"))

        with at_boundaries(bed.cluster, Act(4, "ws", narrow)):
            reply = bed.session(feeds)
        partitions = reply.details.partitions
        sent, sent_at_last = (_exchanged_bytes(bed, one) for one in (partitions[4], partitions[-2]))
    assert not reply.details.faults
    assert any("drifted" in switch.reason for switch in reply.details.switches if switch.segment > 4)
    assert sent_at_last < sent / 2, "a link of 1 Mbit/s carries no layer in the time that one device takes"
    for one in (before, reply):
        np.testing.assert_allclose(one.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


@pytest.mark.alone
@pytest.mark.usefixtures("equally_measured")
def test_a_plan_moves_when_a_device_slows_down_within_a_run(tmp_path: Path) -> None:
    """Its own times ride on what it sends; what it took goes to the others."""
    pace = tmp_path / "pace"
    _say(pace, SLOWER)
    words = ("--dilate-compute", f"@{pace}")
    with _bed(tmp_path, "400Mbit", *words, hidden=384, n_layers=MANY_LAYERS, slower=SLOWER, mode="ws") as bed:
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        before = _shared(bed, feeds)
        with at_boundaries(bed.cluster, Act(4, "ws", lambda: _say(pace, 6 * SLOWER))):
            reply = bed.session(feeds)
    assert not reply.details.faults
    assert any("drifted" in switch.reason for switch in reply.details.switches if switch.segment > 4)
    rows = _rows(reply)
    assert min(rows[5:]) < rows[3] / 2
    for one in (before, reply):
        np.testing.assert_allclose(one.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)


@pytest.mark.alone
@pytest.mark.usefixtures("equally_measured")
def test_a_device_that_was_slow_and_left_out_is_tried_again(tmp_path: Path) -> None:
    """Runs tell nothing of who has no part in them; after a while it counts as it was measured."""
    pace = tmp_path / "pace"
    _say(pace, SLOWER)
    words = ("--dilate-compute", f"@{pace}")
    with _bed(tmp_path, "400Mbit", *words, hidden=384, n_layers=8, slower=SLOWER, mode="ws") as bed:
        feeds = bed.session.sample(TOKENS)
        alone = bed.session.alone(feeds)
        _shared(bed, feeds)
        _say(pace, 20 * SLOWER)
        for _ in range(10):
            left_out = bed.session(feeds)
            if "wall" not in left_out.details.partitions[-2].participants:
                break
        else:
            raise AssertionError("a device twenty times slower was never left out")
        _say(pace, SLOWER)
        again = _shared(bed, feeds)
    assert not again.details.faults
    for one in (left_out, again):
        np.testing.assert_allclose(one.outputs["vector"], alone.outputs["vector"], atol=TOLERANCE)
