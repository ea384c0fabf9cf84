"""Other runtimes behind one call: each answers what the model says, or says what it lacks."""

from pathlib import Path

import numpy as np
import pytest
import torch

from pliant.cli.peer_runtimes import open_peer
from pliant.errors import InputError

FEEDS = {
    "x": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "y": np.full((2, 3), 2, np.float32),
}


class Both(torch.nn.Module):
    """Two inputs and two outputs whose order matters."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x - y, torch.tanh(x)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The module as ONNX."""
    path = tmp_path / "both.onnx"
    arguments = tuple(torch.from_numpy(a) for a in FEEDS.values())
    torch.onnx.export(
        Both(), arguments, str(path), input_names=["x", "y"], output_names=["d", "t"], dynamo=False
    )
    return path


@pytest.mark.filterwarnings("ignore")
def test_torch_runs_the_exported_program_beside_the_model(model: Path) -> None:
    """Outputs go by the model's names."""
    arguments = tuple(torch.from_numpy(a) for a in FEEDS.values())
    torch.export.save(torch.export.export(Both(), arguments), model.with_suffix(".pt2"))
    answers = open_peer("torch", model, 1)(FEEDS)
    np.testing.assert_allclose(answers["d"], FEEDS["x"] - FEEDS["y"])
    np.testing.assert_allclose(answers["t"], np.tanh(FEEDS["x"]), rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_torch_without_a_program_says_how_to_make_one(model: Path) -> None:
    """It cannot read ONNX."""
    with pytest.raises(InputError, match=r"both\.pt2.*torch\.export\.save"):
        open_peer("torch", model, 1)
