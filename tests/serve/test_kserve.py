"""The KServe SDK's clients, unmodified, against a node.

The SDK wants an older protobuf and psutil than the other tests run with, and registers the same gRPC messages
as Triton's client: it runs in a virtual environment of its own, `.venv-kserve`, which `.ci/run` makes.
"""

import json
import subprocess
from pathlib import Path

import pytest

from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, running

PYTHON = Path(__file__).parents[2] / ".venv-kserve" / "bin" / "python"
WORD = "A MOVING FILM"
ANSWERED = {"id": "7", "model": "upper", "upper": [WORD], "n": [len(WORD)]}
EXPECTED = {
    "live": True,
    "ready": True,
    "model": True,
    "other": False,
    "plain": ANSWERED,
    "binary": ANSWERED,
}


@pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-kserve with the KServe SDK; .ci/run makes it")
def test_the_sdk_is_answered_over_rest_and_grpc() -> None:
    """[serve.clients] health, readiness, and inference in both forms, by each of its two clients."""
    with running(Upper(), grpc=ANY_PORT) as node:
        assert node.node is not None
        calls = Path(__file__).with_name("kserve_calls.py")
        command = [PYTHON, "-P", "-W", "ignore", calls, node.url, str(node.grpc)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"rest": EXPECTED, "grpc": EXPECTED}
