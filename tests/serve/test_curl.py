"""[serve.clients] curl, as an operator types it: health, answers in JSON, compression, errors."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
TOKEN = "0123456789abcdef"


def _curl(node: Running, path: str, *words: str) -> tuple[int, str]:
    """The status and the body that curl prints."""
    asked = ["curl", "-sS", "--max-time", str(int(PATIENCE_S)), "-w", "\n%{http_code}", *words]
    said = subprocess.run([*asked, f"{node.url}{path}"], capture_output=True, text=True, check=True)
    body, _, status = said.stdout.rpartition("\n")
    return int(status), body


def test_curl_asks_whether_a_node_is_well_and_gets_answers(tmp_path: Path) -> None:
    """From the command line and from a file; a compressed answer is the same."""
    file = tmp_path / "asked.json"
    file.write_bytes(asking("from a file"))
    with running(Upper()) as node:
        assert _curl(node, "/v2/health/live")[0] == _curl(node, "/v2/health/ready")[0] == 200
        status, body = _curl(node, "/v2/models/upper/infer", "-d", asking("typed in").decode())
        assert (status, _text(json.loads(body))) == (200, "TYPED IN")
        status, body = _curl(node, "/v2/models/upper/infer", "--data-binary", f"@{file}")
        assert (status, _text(json.loads(body))) == (200, "FROM A FILE")
        plain, compressed = (_curl(node, "/openapi.json", *words) for words in ((), ("--compressed",)))
        assert plain == compressed
        assert plain[0] == 200


def test_curl_is_told_what_is_wrong() -> None:
    """A status, and one line of JSON with the reason."""
    with running(Upper(), tokens=(TOKEN,)) as node:
        status, body = _curl(node, "/v2/models/upper/infer", "-d", asking("x").decode())
        assert (status, "Authorization: Bearer TOKEN" in json.loads(body)["error"]) == (401, True)
        shown = ("-H", f"Authorization: Bearer {TOKEN}")
        assert _curl(node, "/v2/models/upper/infer", *shown, "-d", asking("x").decode())[0] == 200
        status, body = _curl(node, "/v2/models/upper/infer", *shown, "-d", "{")
        assert (status, bool(json.loads(body)["error"])) == (400, True)
        assert _curl(node, "/v2/models/other", *shown)[0] == 404


def _text(answer: dict[str, Any]) -> str:
    found: str = answer["outputs"][0]["data"][0]
    return found
