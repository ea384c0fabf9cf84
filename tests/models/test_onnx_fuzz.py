"""Damaged and hostile ONNX files: whatever bytes are opened, only PliantError may come out, and soon."""

from functools import cache

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pliant.errors import MissingValueError, PliantError
from pliant.models.onnx.onnx_file import open_onnx
from tests.compiler.passes.read_graph import EVERY_OPERATOR
from tests.models.one_graph import bind
from tests.models.onnx_models import linear, parse

# Bytes that mean something to protobuf: long lengths, empty fields, the tags of nodes and initializers.
_TELLING = [b"\xff\xff\xff\xff\x7f", b"\x00", b"\x0a\x00", b"\x2a\x02", b"\x80\x80\x80\x80\x80\x01", b""]


@cache
def _models() -> tuple[bytes, ...]:
    """One with shapes that are fed and computed, one with functions, one with a long weight."""
    fed = parse(
        """g (float[N,4] x, int64[k] s) => (float[a,b] y)
        <float[4,4] w = {1,2,3,4,5,6,7,8,9,1,2,3,4,5,6,7}> {
          t = Relu(x) m = MatMul(t, w) u = Add(m, x) h = Shape(x)
          i = Constant <value = int64[1] {0}> () c = Gather <axis = 0> (h, i)
          z = Concat <axis = 0> (c, i) y = Reshape(u, s) }"""
    )
    functions = parse(
        """g (float[2,3] x) => (float[2,3] y, float[6] z, int64[2] e) {
          e = Shape(x) a = Softmax <axis = 1> (x) y = local.f(a, x)
          n = Constant <value = int64[1] {6}> () z = Reshape(y, n) }""",
        functions="""<opset_import: ["": 17], domain: "local"> f (a, b) => (c)
        { t = Add(a, b) c = LayerNormalization <axis = 1> (t, t) }""",
    )
    return tuple(model.SerializeToString() for model in (fed, functions, linear(40, 40)[0]))


@st.composite
def _damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(_models())))
    for _ in range(draw(st.integers(1, 4))):
        # Structure stands at both ends; the middle of a weight is only numbers.
        end = min(len(data), 400)
        at = draw(st.integers(0, end)) if draw(st.booleans()) else len(data) - draw(st.integers(0, end))
        gone = draw(st.integers(0, 6))
        data[at : at + gone] = draw(st.one_of(st.sampled_from(_TELLING), st.binary(max_size=6)))
    return bytes(data[: draw(st.sampled_from([len(data), len(data) // 2])) or 1])


@given(_damaged())
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_only_our_own_errors_come_out(data: bytes) -> None:
    """A server that opens what it is sent must survive it; what opens must bind or say why not."""
    try:
        model = open_onnx(data)
        shapes = {
            p.name: tuple(d if isinstance(d, int) else 3 for d in (p.dims or (3, 4))) for p in model.inputs
        }
        try:
            bind(model, {}, supported=EVERY_OPERATOR, shapes=shapes)
        except MissingValueError as needed:
            values = {x: np.zeros(shapes[x], np.int64) for x in needed.names}
            bind(model, {}, values, supported=EVERY_OPERATOR, shapes=shapes)
    except PliantError:
        pass
