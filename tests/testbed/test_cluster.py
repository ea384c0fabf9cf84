"""Clusters of real processes over shaped links."""

from pathlib import Path

import numpy as np
import pytest

from testbed import DeviceSpec, rate, why_not
from testbed.hepti import open_bed
from tests.cluster.processes import small_model

pytestmark = pytest.mark.alone

_TOKENS = 48


@pytest.mark.parametrize("n_devices", [2, 4])
def test_devices_answer_as_one_does_and_send_what_was_planned(n_devices: int, tmp_path: Path) -> None:
    """Issue, parts 2 and 3: 1e-4 of the unsplit model, and the interface's bytes are the payload's and little
    more: headers, encryption, acknowledgements, and control messages several times a second."""
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no testbed: {reason}")
    specs = [DeviceSpec(f"d{i}", slower=1.0 + i, bandwidth_Bps=rate("400Mbit")) for i in range(n_devices)]
    with open_bed(specs, small_model(tmp_path), tmp_path, mode="ws", shares="equal", adapt=False) as bed:
        feeds = bed.session.sample(_TOKENS)
        alone = bed.session.alone(feeds)
        bed.session(feeds)
        before = {device.name: device.counters for device in bed.network}
        replies = [bed.session(feeds) for _ in range(5)]
        seen = {device.name: device.counters.since(before[device.name]) for device in bed.network}
    for reply in replies:
        assert reply.details.mode == "ws"
        assert len(reply.details.partitions[-1].participants) == n_devices
        np.testing.assert_allclose(reply.outputs["vector"], alone.outputs["vector"], atol=1e-4)
    payload = sum(reply.details.sent_bytes for reply in replies)
    sent = sum(counters.sent_bytes for counters in seen.values())
    received = sum(counters.received_bytes for counters in seen.values())
    assert payload < sent < 1.5 * payload
    assert payload < received < 1.5 * payload
