"""Requests over gRPC become the body that asks the same over REST."""

from typing import Any

import numpy as np
import pytest

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.serve.grpc.infer_messages import read_infer, write_infer
from pliant.serve.grpc.wire_messages import message
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import Signature, read_request
from pliant.serve.protocol.oip_tensors import DATATYPES, numpy_dtype
from pliant.serve.protocol.replies import write_reply
from tests.serve.models import texts

REQUEST, INPUT = message("ModelInferRequest"), message("ModelInferRequest.InferInputTensor")
FIELDS = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    **{"int64": "int64_contents", "uint64": "uint64_contents"},
    **{"float32": "fp32_contents", "float64": "fp64_contents", "bytes": "bytes_contents"},
}
LIMITS = Limits(n_elements=100)


def model(dtype: str) -> Signature:
    ports = (Port("x", dtype, (None, None)),)
    return Signature("m", "test", ports, ports, (frozenset({"x"}),))


def asked(dtype: str, array: np.ndarray, **more: Any) -> Any:
    """The elements in `contents`."""
    contents = {FIELDS[dtype]: array.ravel().tolist()}
    tensor = INPUT(name="x", datatype=DATATYPES[dtype], shape=array.shape, contents=contents)
    return REQUEST(model_name="m", inputs=[tensor], **more)


@pytest.mark.parametrize("dtype", sorted(FIELDS))
def test_typed_contents_are_read_as_they_were_meant(dtype: str) -> None:
    """Every datatype that has a field of its own, to its ends, there and back."""
    if dtype == "bytes":
        array = texts(b"", b"\x00\xff", b"abc", b"d").reshape(2, 2)
    elif dtype == "bool":
        array = np.array([[True, False], [False, True]])
    else:
        kind = numpy_dtype(dtype)
        about = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        array = np.array([[about.min, 0], [1, about.max]], kind)
    body = read_infer(asked(dtype, array, id="7"), LIMITS)
    request = read_request(body.content, body.header_bytes, model(dtype), LIMITS)
    assert request.tensors["x"].dtype == array.dtype
    assert request.tensors["x"].tolist() == array.tolist()
    reply = write_reply(request, {"x": request.tensors["x"]}, model(dtype), {"met": True})
    answer = write_infer(reply, "3")
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "m", "3")
    assert answer.parameters["met"].bool_param
    assert list(answer.outputs[0].shape) == [2, 2]
    if dtype == "bytes":
        assert answer.raw_output_contents[0] == b"\0\0\0\0\2\0\0\0\x00\xff\3\0\0\0abc\1\0\0\0d"
    else:
        assert answer.raw_output_contents[0] == array.tobytes()


def test_parameters_of_every_kind_arrive() -> None:
    """Terms are numbers and booleans; the call's own deadline replaces the request's."""
    array = np.array([[1]], np.int32)
    request = asked("int32", array)
    request.parameters["deadline_s"].double_param = 2.5
    request.parameters["accuracy_floor"].int64_param = 0
    request.parameters["best_effort"].bool_param = True
    for deadline_s in (None, 0.5):
        body = read_infer(request, LIMITS, deadline_s)
        terms = read_request(body.content, body.header_bytes, model("int32"), LIMITS).terms
        assert (terms.deadline_s, terms.accuracy_floor) == (deadline_s or 2.5, 0.0)
        assert terms.best_effort


def test_contents_that_do_not_fit_are_refused() -> None:
    """Each with what is wrong; what follows from names and shapes is found by the reader of the body."""
    one, wide = np.array([[1]], np.int32), np.zeros((1, 101), np.int32)
    both = asked("int32", one)
    both.raw_input_contents.append(b"\0\0\0\0")
    fewer = REQUEST(inputs=[INPUT(name="x"), INPUT(name="y")], raw_input_contents=[b""])
    half = asked("int32", one)
    half.inputs[0].datatype = "FP16"
    other = asked("int32", one)
    other.inputs[0].datatype = "FP32"
    twice = asked("int32", one)
    twice.inputs[0].contents.fp32_contents.append(1.0)
    large = asked("int32", np.array([[300]], np.int32))
    large.inputs[0].datatype = "INT8"
    for request, why in (
        (both, "no `contents`"),
        (fewer, "1 parts for 2 inputs"),
        (half, "give raw_input_contents"),
        (other, "contents.fp32_contents"),
        (twice, "int_contents, fp32_contents"),
        (large, "does not fit INT8"),
        (asked("int32", wide), "101 elements"),
    ):
        with pytest.raises(InputError, match=why):
            read_infer(request, LIMITS)


@pytest.mark.parametrize(
    ("shape", "raw", "why"),
    [
        ((1, 2), b"\0" * 7, "takes 8 bytes, not 7"),
        ((1, 2), b"\0" * 9, "takes 8 bytes, not 9"),
        ((2,), b"\0" * 8, "must be INT32"),
        ((-1, 2), b"", "shape"),
        ((1 << 62, 4), b"", "shape"),
        ((1,) * 9, b"\0" * 4, "must be INT32"),
    ],
)
def test_raw_contents_that_do_not_fit_their_shape_are_refused(
    shape: tuple[int, ...], raw: bytes, why: str
) -> None:
    """Truncated, too long, another rank, and shapes that no memory holds."""
    tensor = INPUT(name="x", datatype="INT32", shape=shape)
    body = read_infer(REQUEST(inputs=[tensor], raw_input_contents=[raw]), LIMITS)
    with pytest.raises(InputError, match=why):
        read_request(body.content, body.header_bytes, model("int32"), LIMITS)
