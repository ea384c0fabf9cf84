"""Attention as torch exports it, batch or sequence first: onnxruntime's answers, in few large products."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.api.compile_onnx import compile as compile_model
from pliant.run.array_sessions.onnx_session import OnnxSession

torch = pytest.importorskip("torch")
onnxruntime = pytest.importorskip("onnxruntime")
nn = torch.nn

BATCH, LENGTH, WIDTH, HEADS = 2, 9, 32, 4
TOLERANCE = 1e-5  # of the largest output: fp32 sums of at most 64 terms, in another order


class _Attention(nn.Module):  # type: ignore[misc]
    """A residual around nn.MultiheadAttention, as in an encoder's layer."""

    def __init__(self, batch_first: bool, is_masked: bool, is_cross: bool, need_weights: bool) -> None:
        super().__init__()
        sizes = {"kdim": 24, "vdim": 20} if is_cross else {}
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **sizes)
        self.is_masked, self.need_weights = is_masked, need_weights

    def forward(self, x: Any, key: Any = None, value: Any = None) -> Any:
        length = x.shape[1 if self.inner.batch_first else 0]
        mask = torch.full((length, length), float("-inf")).triu(1) if self.is_masked else None
        key, value = (x, x) if key is None else (key, value)
        return x + self.inner(x, key, value, attn_mask=mask, need_weights=self.need_weights)[0]


def _exported(module: Any, inputs: tuple[Any, ...], path: Path, *, is_dynamo: bool = False) -> Path:
    torch.manual_seed(0)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for p in module.eval().parameters():
            p.add_(torch.randn_like(p) * 0.05)  # zero biases would vanish from the graph
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # the older exporter does not know its operator
        try:
            more = {"verbose": False, "external_data": False} if is_dynamo else {}
            version = 18 if is_dynamo else 17
            torch.onnx.export(module, inputs, str(path), opset_version=version, dynamo=is_dynamo, **more)
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
    return path


def _checked(path: Path, inputs: tuple[Any, ...]) -> tuple[OnnxSession, dict[str, np.ndarray]]:
    """A session that answers as onnxruntime does, and its feeds."""
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {port.name: x.numpy() for port, x in zip(reference.get_inputs(), inputs, strict=True)}
    session = compile_model(path, threads=1)
    for got, wanted in zip(session.run(feeds).values(), reference.run(None, feeds), strict=True):
        assert np.abs(got - wanted).max() <= TOLERANCE * np.abs(wanted).max()
    return session, feeds


def _products(session: OnnxSession, feeds: dict[str, np.ndarray]) -> list[tuple[int, int]]:
    """How many products each call of the product's kernel makes, and their rows."""
    calls = [c for c in session.image(feeds).calls if c.kernel.name.startswith("matmul")]
    return [(int(np.prod(c.fields["extents"])), int(c.fields["n_rows"])) for c in calls]  # type: ignore[arg-type, call-overload]


@pytest.mark.parametrize("need_weights", [False, True], ids=["sdpa", "weights"])
@pytest.mark.parametrize("is_masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence first", "batch first"])
def test_multihead_attention_is_one_attention_between_products_of_whole_sequences(
    batch_first: bool, is_masked: bool, need_weights: bool, tmp_path: Path
) -> None:
    """With `batch_first` torch transposes to [L, B, E], which was L products of B rows: 5 times the time."""
    x = torch.randn(BATCH, LENGTH, WIDTH) if batch_first else torch.randn(LENGTH, BATCH, WIDTH)
    path = _exported(_Attention(batch_first, is_masked, False, need_weights), (x,), tmp_path / "m.onnx")
    session, feeds = _checked(path, (x,))
    ops = [node.op for node in session.graph(feeds).nodes]
    assert ops.count("FusedAttention") == 1
    products = _products(session, feeds)
    assert len(products) == 2
    assert all(n * rows == BATCH * LENGTH and rows >= LENGTH for n, rows in products)


@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence first", "batch first"])
def test_cross_attention_with_own_widths_answers_as_in_onnxruntime(batch_first: bool, tmp_path: Path) -> None:
    """Separate projections of query, key and value, and other lengths of keys than of queries."""
    shapes = [(BATCH, LENGTH, WIDTH), (BATCH, 5, 24), (BATCH, 5, 20)]
    inputs = tuple(torch.randn(s if batch_first else (s[1], s[0], s[2])) for s in shapes)
    path = _exported(_Attention(batch_first, False, True, False), inputs, tmp_path / "m.onnx")
    session, feeds = _checked(path, inputs)
    assert [node.op for node in session.graph(feeds).nodes].count("FusedAttention") == 1
    assert all(rows >= 5 for _, rows in _products(session, feeds))


@pytest.mark.slow
@pytest.mark.parametrize("batch_first", [False, True], ids=["sequence first", "batch first"])
def test_multihead_attention_by_dynamo_answers_as_in_onnxruntime(batch_first: bool, tmp_path: Path) -> None:
    """The exporter that torch now recommends writes other nodes for the same module."""
    pytest.importorskip("onnxscript")
    x = torch.randn(BATCH, LENGTH, WIDTH) if batch_first else torch.randn(LENGTH, BATCH, WIDTH)
    module = _Attention(batch_first, False, False, False)
    session, feeds = _checked(_exported(module, (x,), tmp_path / "m.onnx", is_dynamo=True), (x,))
    assert [node.op for node in session.graph(feeds).nodes].count("FusedAttention") == 1
    assert all(rows >= LENGTH for _, rows in _products(session, feeds))
