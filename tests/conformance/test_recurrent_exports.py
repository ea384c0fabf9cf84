"""Torch's exports of recurrent models, compiled, against torch: at lengths they were not exported with."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.api.compile_onnx import compile as compile_model

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
nn = torch.nn

TOLERANCE = 1e-5  # the bar
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "LSTM 1 x 19": ("LSTM", {"hidden_size": 19}),
    "LSTM 2 x 24": ("LSTM", {"hidden_size": 24, "num_layers": 2}),
    "LSTM both ways 1 x 33": ("LSTM", {"hidden_size": 33, "bidirectional": True}),
    "LSTM both ways 2 x 200": ("LSTM", {"hidden_size": 200, "num_layers": 2, "bidirectional": True}),
    "GRU 1 x 40": ("GRU", {"hidden_size": 40}),
    "GRU both ways 2 x 21": ("GRU", {"hidden_size": 21, "num_layers": 2, "bidirectional": True}),
}


class _Classifier(nn.Module):  # type: ignore[misc]
    """Words, layers, what they end in and the greatest of each unit, two logits."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 12)
        self.layers = getattr(nn, kind)(12, batch_first=True, **options)
        width = options["hidden_size"] * (1 + options.get("bidirectional", False))
        self.classifier = nn.Linear(2 * width, 2)

    def forward(self, ids: Any) -> Any:
        states, last = self.layers(self.embedding(ids))
        last = last[0] if isinstance(last, tuple) else last
        directions = 1 + self.layers.bidirectional
        ends = torch.cat([last[i] for i in range(-directions, 0)], 1)
        return self.classifier(torch.cat([ends, states.amax(1)], 1)), states


@pytest.mark.parametrize("case", CASES)
def test_a_classifier_answers_as_torch_does(case: str, tmp_path: Path) -> None:
    """Both from one file: any batch and any length, one step included."""
    torch.manual_seed(0)
    kind, options = CASES[case]
    module = _Classifier(kind, **options).eval()
    file = tmp_path / "model.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.zeros(2, 5, dtype=torch.long),),
            str(file),
            input_names=["ids"],
            dynamic_axes={"ids": {0: "batch", 1: "words"}},
            opset_version=17,
            dynamo=False,
        )
    session = compile_model(file)
    for batch, n in ((1, 1), (1, 40), (3, 7)):
        ids = np.random.default_rng(n).integers(0, 50, (batch, n))
        with torch.no_grad():
            want = [np.asarray(y) for y in module(torch.from_numpy(ids))]
        for mine, theirs in zip(session.run({"ids": ids}).values(), want, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE)
