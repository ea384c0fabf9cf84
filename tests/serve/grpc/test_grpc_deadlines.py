"""Which deadline of a call over gRPC is the sooner: that of the call, or the one that its request states."""

from unittest.mock import Mock

import pytest

from pliant.serve.grpc.grpc_service import sooner_deadline_s
from pliant.serve.grpc.wire_messages import message


@pytest.mark.parametrize(
    ("left_s", "stated_s", "default_s", "waited_s", "sooner_s"),
    [
        (4.0, 5.0, None, 3.0, None),
        (4.0, 8.0, None, 3.0, 7.0),
        (4.0, None, 5.0, 3.0, None),
        (4.0, None, 8.0, 3.0, 7.0),
        (4.0, 5.0, None, 0.0, 4.0),
        (4.0, None, None, 3.0, 7.0),
        (None, 5.0, None, 3.0, None),
    ],
)
def test_all_deadlines_count_from_when_the_call_came(
    left_s: float | None,
    stated_s: float | None,
    default_s: float | None,
    waited_s: float,
    sooner_s: float | None,
) -> None:
    """After a load, only gRPC counts from now: its deadline took the place of a tighter one."""
    request = message("ModelInferRequest")()
    if stated_s is not None:
        request.parameters["deadline_s"].double_param = stated_s
    context = Mock(time_remaining=Mock(return_value=left_s))
    assert sooner_deadline_s(request, context, default_s, waited_s) == sooner_s
