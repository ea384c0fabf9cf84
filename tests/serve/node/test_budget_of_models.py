"""One memory budget over all models of a node: each is shown with its share, and only requests count."""

from pathlib import Path

import httpx

from pliant.api.open_endpoint import open_endpoint
from pliant.cli.shared.model_arguments import ModelArguments
from pliant.run.process_memory import MemoryBudget
from pliant.serve.page.node_picture import numbers
from pliant.serve.repository.model_entry import ModelEndpoints
from pliant.serve.upstream.request_explanation import request_explanation
from tests.serve.nodes import PATIENCE_S, asking, running, running_models
from tests.serve.repository.test_models_under_load import sums
from tests.serve.test_routing import metric

TEXT = "a charming and often affecting journey"
RECURRENT = "random:cove-200:1"


def test_models_outside_the_division_are_shown_with_their_memory(tmp_path: Path) -> None:
    """An ONNX model counts in the budget, but only models that can free weights were listed anywhere."""
    onnx = sums(tmp_path)
    arguments = [
        ModelArguments(source=RECURRENT, name="cove", threads=1),
        ModelArguments(source=str(onnx), name="a", threads=1),
        ModelArguments(source=str(onnx), name="b", memory="3MB", threads=1),
    ]
    budget = MemoryBudget(100_000_000)
    entries = [one.entry(ModelEndpoints()) for one in arguments]
    with running_models(entries, budget) as node:
        assert node.repository is not None
        tensor = {"name": "x", "shape": [1, 8], "datatype": "FP32", "data": [1.0] * 8}
        url = f"{node.url}/v2/models/a/infer"
        assert httpx.post(url, json={"inputs": [tensor]}, timeout=PATIENCE_S).status_code == 200
        found = request_explanation(node.url, 1, None, httpx.create_ssl_context(), model="a")
        shares = {share.name: share for share in found.memory}
        assert [*shares] == ["cove", "a", "b"]
        assert shares["b"].share_bytes == 3_000_000
        assert 0.9 < shares["a"].n_asked <= 1.0  # decays within a minute
        assert (shares["b"].n_asked, shares["cove"].n_asked) == (0.0, 0.0)
        assert shares["a"].share_bytes > onnx.stat().st_size
        assert sum(one.share_bytes for one in shares.values()) == budget.total_bytes - budget.free_bytes
        pictured = numbers(list(node.repository.nodes), False).models
        for name, share in shares.items():
            assert (seen := pictured[f"{name}:1"].share) is not None
            assert (seen.share_bytes, seen.held_bytes) == (share.share_bytes, share.held_bytes)
            for kind, n_bytes in (("share", share.share_bytes), ("held", share.held_bytes)):
                assert metric(node, f'pliant_memory_{kind}_bytes{{model="{name}"}}') == n_bytes


def test_samples_of_a_starting_node_are_no_requests() -> None:
    """They counted as up to 33 requests in the last minute, and decided which model kept its weights."""
    budget = MemoryBudget(100_000_000)
    served = open_endpoint(RECURRENT, memory=budget, threads=1)
    with running(served, memory=budget, learn_s=0.05) as node:
        (share,) = budget.shares
        assert share.n_asked == 0.0
        body = asking(TEXT)
        for _ in range(3):
            answer = httpx.post(f"{node.url}/v2/models/{served.name}/infer", content=body, timeout=PATIENCE_S)
            assert answer.status_code == 200, answer.text
        (share,) = budget.shares
        assert 2.0 < share.n_asked <= 3.0  # decays within a minute
