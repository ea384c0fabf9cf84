"""Which options a replica has, from those of the deployment and its own."""

import pytest

from pliant.errors import InputError

pytest.importorskip("ray", reason="ray is not installed: pip install 'pliant[ray]'")
from pliant.ray.replica_options import replica_options


def test_options_of_one_replica_precede_those_of_all() -> None:
    """Terms and the queue of one replica are no options of its model."""
    common = {"memory": "20MB", "threads": 2, "latency": "20ms", "accuracy_floor": 0.5, "queue": None}
    found = replica_options(common, {"latency": "80ms", "queue": 3, "threads": 1}, 65)
    assert (found.terms.deadline_s, found.terms.accuracy_floor, found.queue) == (0.08, 0.5, 3)
    assert found.opening == {"memory": "20MB", "threads": 1}


def test_the_queue_has_what_serve_sends() -> None:
    """A longer one never fills, and a shorter one by default would refuse what Serve sends."""
    assert replica_options({}, {}, 9).queue == 8
    assert replica_options({"queue": 8}, {}, 9).queue == 8
    assert replica_options({"queue": 0}, {}, 9).queue == 0
    for queue in (9, -1):
        with pytest.raises(InputError, match=rf"queue is {queue}, .* at most 9 requests .* give 0 to 8"):
            replica_options({"queue": queue}, {}, 9)
