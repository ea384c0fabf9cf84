"""A link that fails between two workers, while the primary hears both: only a missed exchange tells."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pliant.cluster.patience import Patience
from pliant.clustered import ClusterReply
from testbed import DeviceSpec, why_not
from testbed.hepti import Bed, open_bed
from tests.cluster.processes import small_model

_TOKENS = 24
_PATIENCE = Patience(silence_s=1.0, least_s=1.5)
_SLOWER = 20.0  # stretches a run to where the cut finds it inside of layers
_EVERYBODY = {"alpha", "b", "c"}


def _whole(bed: Bed, feeds: dict[str, np.ndarray]) -> ClusterReply:
    """A run with everybody in it; penalties of earlier faults may have to pass first."""
    until_s = time.monotonic() + 60.0
    while time.monotonic() < until_s:
        bed.cluster.wait(2, 30.0)
        reply = bed.cluster.run(bed.model, feeds)
        if set(reply.partitions[-1].participants) == _EVERYBODY and not reply.faults:
            return reply
    raise AssertionError(f"not all came back: {bed.cluster.status()}")


@pytest.mark.parametrize("share", [0.0, 0.5], ids=["before a run", "inside a run"])
def test_a_link_cut_between_two_workers_costs_one_of_them_and_not_the_answer(
    share: float, tmp_path: Path
) -> None:
    """Nobody is silent and nobody is frozen: who waits in vain says so in bounded time, one of the two is
    left out, the segment is repeated; both are in again once the link is back."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    specs = [DeviceSpec(name, slower=_SLOWER) for name in ("alpha", "b", "c")]
    model = small_model(tmp_path)
    with open_bed(specs, model, tmp_path, shares="equal", adapt=False, patience=_PATIENCE) as bed:
        feeds = dict(bed.cluster.sample(model, _TOKENS))
        alone = bed.cluster.run(model, feeds, is_alone=True)
        before = _whole(bed, feeds)
        np.testing.assert_allclose(before.answer, alone.answer, atol=1e-4)
        cut = threading.Timer(share * before.seconds, bed.network.part, ("b", "c"))
        cut.start()
        if not share:
            cut.join()
        reply = bed.cluster.run(model, feeds)
        cut.join()
        np.testing.assert_allclose(reply.answer, alone.answer, atol=1e-4)
        assert reply.faults
        left_out = {verdict.member for fault in reply.faults for verdict in fault.verdicts}
        assert left_out in ({"b"}, {"c"})
        assert set(reply.partitions[-1].participants) == _EVERYBODY - left_out
        layer_s = before.predicted_s / 6
        assert reply.faults[0].noticed_s < _PATIENCE.exchange_s(layer_s) + 5.0  # of a busy machine
        assert {m.name for m in bed.cluster.status()} == {"b", "c"}
        assert all(m.heard_s_ago < 1.0 for m in bed.cluster.status())
        bed.network.unite("b", "c")
        after = _whole(bed, feeds)
        np.testing.assert_allclose(after.answer, alone.answer, atol=1e-4)
