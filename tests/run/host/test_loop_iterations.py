"""Turns of a loop that are alike run without being bound anew, and give what they gave."""

from typing import Any

import numpy as np
import onnxruntime
import pytest

from pliant.api.compile_onnx import compile
from pliant.run.graph.symbolic_forms import SymbolicForm
from tests.models.onnx_models import parse

CELL = """g (float[2,4] x, int64 n) => (float[2,4] last, float[2,4] other, float[a,2,4] all,
    float[b,2,4] same) <bool go = {{1}}> {{
  last, other, all, same = Loop (n, go, x, x) <body = b (int64 i, bool c, float[2,4] s, float[2,4] t)
      => (bool again, float[2,4] next, float[2,4] {second}, float[2,4] {piece}, float[2,4] kept) {{
    again = Identity(c) f = Cast<to=1>(i) moved = Add(s, f) next = Tanh(moved) sum = Add(t, next)
    more = Mul(sum, x) kept = Identity(next) }}> }}"""
"""Two states and two pieces, some of which are other tensors as they are."""


@pytest.mark.parametrize("turns", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(
    ("second", "piece"),
    [("more", "sum"), ("s", "sum"), ("t", "sum"), ("more", "next"), ("more", "t"), ("s", "s")],
)
def test_states_that_alternate_are_never_read_too_late(second: str, piece: str, turns: int) -> None:
    """A state may be handed on for two turns, be a piece as well, or stay: no array is reused before."""
    model = parse(CELL.format(second=second, piece=piece))
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    session = compile(model, threads=2)
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)
        feeds: dict[str, Any] = {"x": x, "n": np.array(turns)}
        for own, right in zip(session.run(feeds).values(), peer.run(None, feeds), strict=True):
            np.testing.assert_allclose(own, right, rtol=1e-5, atol=1e-5)  # a few roundings of numbers near 1


def test_turns_alike_are_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn takes beside its kernels must not grow with what the loop reads."""
    runs, run = [], SymbolicForm.run

    def counted(self: SymbolicForm, *given: Any) -> Any:
        runs.append(self)
        return run(self, *given)

    monkeypatch.setattr(SymbolicForm, "run", counted)
    session = compile(parse(CELL.format(second="more", piece="sum")), threads=1)
    for turns in (50, 60):
        runs.clear()
        session.run({"x": np.ones((2, 4), np.float32), "n": np.array(turns)})
        assert len(runs) <= 4


def test_turns_that_change_in_shape_are_bound_again() -> None:
    """A state that stays for a while and then grows ends what was bound."""
    model = parse("""g (float[1,4] x, int64 n) => (float[a,4] y)
      <bool go = {1}, int64 three = {3}, int64 zero = {0}> {
      y = Loop (n, go, x) <body = b (int64 i, bool c, float[m,4] s) => (bool again, float[k,4] next) {
        again = Identity(c) part = Mod(i, three) grows = Equal(part, zero)
        next = If (grows) < then_branch = t () => (float[p,4] u) { u = Concat<axis=0>(s, x) },
                            else_branch = e () => (float[p,4] v) { v = Add(s, x) }> }> }""")
    peer = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {"x": np.ones((1, 4), np.float32), "n": np.array(10)}
    (own,) = compile(model, threads=1).run(feeds).values()
    np.testing.assert_array_equal(own, peer.run(None, feeds)[0])
