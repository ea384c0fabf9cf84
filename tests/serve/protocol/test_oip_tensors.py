"""Tensors of every datatype come back as they went, in both forms; what does not fit is refused."""

import json
import tracemalloc
from contextlib import nullcontext
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.serve.protocol.inference import InferBody, Signature, read_request
from pliant.serve.protocol.oip_tensors import (
    DATATYPES,
    numpy_dtype,
    read_bytes,
    read_json,
    write_bytes,
    write_json,
)
from pliant.serve.protocol.replies import check_reply
from tests.serve.models import texts

SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
PLAIN = [dtype for dtype in DATATYPES if dtype not in ("bytes", "bfloat16")]


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


@given(st.data())
def test_every_datatype_survives_its_binary_form(data: st.DataObject) -> None:
    """A tensor's bits are the model's input: not one may change on the way."""
    dtype = data.draw(st.sampled_from(PLAIN))
    array = data.draw(arrays.arrays(numpy_dtype(dtype), SHAPES))
    back = read_bytes(dtype, array.shape, memoryview(write_bytes(array, dtype)))
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.data())
def test_every_datatype_survives_json_flat_and_nested(data: st.DataObject) -> None:
    """JSON holds a double exactly, and so every finite number of every datatype."""
    dtype = data.draw(st.sampled_from(PLAIN))
    elements: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if "float" in dtype else {}
    array = data.draw(arrays.arrays(numpy_dtype(dtype), SHAPES, elements=elements or None))
    for form in (write_json(array, dtype), array.tolist()):
        if array.ndim == 0 and not isinstance(form, list):
            continue
        back = read_json(dtype, array.shape, raw(form))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


@given(st.lists(st.binary(max_size=9), min_size=4, max_size=4))
def test_bytes_survive_their_binary_form(words: list[bytes]) -> None:
    """Elements are any bytes, zeros and lengths included."""
    array = texts(*words).reshape(2, 2)
    back = read_bytes("bytes", (2, 2), memoryview(write_bytes(array, "bytes")))
    assert back.tolist() == array.tolist()


@given(st.lists(st.text(max_size=9), max_size=5))
def test_texts_survive_json(words: list[str]) -> None:
    """Text of all scripts is what classifiers are asked."""
    array = texts(*words)
    assert read_json("bytes", array.shape, raw(write_json(array, "bytes"))).tolist() == array.tolist()


def test_bfloat16_travels_as_two_bytes_and_as_a_number() -> None:
    """numpy has no such dtype: ml_dtypes' is used, and 1.5 is 0x3fc0 in it."""
    array = np.array([1.5, -2.0], numpy_dtype("bfloat16"))
    assert write_bytes(array, "bfloat16") == bytes.fromhex("c03f00c0")
    assert read_bytes("bfloat16", (2,), memoryview(bytes.fromhex("c03f00c0"))).tolist() == [1.5, -2.0]
    assert write_json(array, "bfloat16") == [1.5, -2.0]
    assert read_json("bfloat16", (2,), raw([1.5, -2])).tolist() == [1.5, -2.0]


def test_what_json_has_no_number_for_becomes_null() -> None:
    """A parser must be able to read every answer."""
    body = msgspec.json.encode(write_json(np.array([np.nan, np.inf, 1.0], np.float32), "float32"))
    assert body == b"[null,null,1.0]"


@pytest.mark.parametrize(
    ("dtype", "shape", "value"),
    [
        ("uint8", (1,), [256]),
        ("uint8", (1,), [-1]),
        ("int8", (1,), [128]),
        ("int64", (1,), [2**63]),
        ("uint64", (1,), [2**64]),
        ("int32", (1,), [1.5]),
        ("int32", (1,), [True]),
        ("int32", (1,), ["1"]),
        ("bool", (1,), [1]),
        ("float16", (1,), [1e6]),
        ("float32", (1,), [1e300]),
        ("float32", (1,), [None]),
        ("float32", (2,), [1.0]),
        ("float32", (1,), [1.0, 2.0]),
        ("float32", (1,), 1.0),
        ("float32", (2, 2), [[1.0, 2.0, 3.0], [4.0]]),
        ("float32", (2, 2), [[[1.0], [2.0]], [[3.0], [4.0]]]),
        ("float32", (2, 1), [[1.0], 2.0]),
        ("float32", (), [[1.0]]),
        ("bytes", (1,), [1]),
        ("bytes", (1,), {"a": 1}),
    ],
)
def test_numbers_that_do_not_fit_are_refused(dtype: str, shape: tuple[int, ...], value: Any) -> None:
    """None may be cut, rounded, wrapped round or taken for another without a word."""
    with pytest.raises(InputError):
        read_json(dtype, shape, raw(value))


def test_of_a_flat_list_the_element_is_named_that_does_not_fit() -> None:
    """It was read as a nested list after that, and the error said that the first element is no list."""
    with pytest.raises(InputError, match=r"elements INT64: Expected `int`, got `float` - at `\$\[1\]`"):
        read_json("int64", (1, 3), raw([101, 2023.5, 102]))


def test_a_number_too_large_for_a_double_is_refused() -> None:
    """JSON sets no bound to numbers; Python's reader makes them infinite."""
    with pytest.raises(InputError):
        read_json("float64", (1,), msgspec.Raw(b"[1e999]"))


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("float32", (2,), b"1234567"),
        ("float32", (2,), b"123456789"),
        ("bool", (1,), b"\x02"),
        ("bytes", (1,), b""),
        ("bytes", (1,), b"\x01\x00\x00"),
        ("bytes", (1,), b"\x02\x00\x00\x00a"),
        ("bytes", (1,), b"\xff\xff\xff\xffa"),
        ("bytes", (1,), b"\x00\x00\x00\x00a"),
        ("bytes", (2,), b"\x01\x00\x00\x00a"),
    ],
)
def test_bytes_that_do_not_fit_are_refused(dtype: str, shape: tuple[int, ...], data: bytes) -> None:
    """Lengths come from strangers: nothing is read beyond what was sent, and nothing is left over."""
    with pytest.raises(InputError):
        read_bytes(dtype, shape, memoryview(data))


def test_bytes_at_odd_addresses_are_aligned_again() -> None:
    """A tensor may start anywhere in a body; kernels read it where it lies."""
    body = memoryview(b"x" + np.arange(4, dtype=np.float32).tobytes())[1:]
    array = read_bytes("float32", (4,), body)
    assert array.flags.aligned
    np.testing.assert_array_equal(array, np.arange(4))


@pytest.mark.parametrize(("dtype", "is_right"), [("float32", True), ("float64", True), ("int64", False)])
def test_an_answer_that_says_null_is_one_where_json_has_no_number(dtype: str, is_right: bool) -> None:
    """NaN and infinities are sent so; an upstream that did was taken for a liar."""
    port = Port("y", dtype, (1, 2))
    model = Signature("m", "test", (port,), (port,), (frozenset({"y"}),))
    about = {"name": "y", "shape": [1, 2], "datatype": DATATYPES[dtype]}
    request = read_request(json.dumps({"inputs": [{**about, "data": [1, 2]}]}).encode(), None, model)
    answer = {"model_name": "m", "outputs": [{**about, "data": [1, None]}]}
    with nullcontext() if is_right else pytest.raises(InputError):
        check_reply(InferBody(json.dumps(answer).encode(), None), request, model)


@pytest.mark.parametrize(
    ("dtype", "data", "is_right"),
    [
        ("float32", [1.5, -2.0], True),
        ("float32", [1, 2], True),
        ("float32", [[1.5, 2.5]], True),
        ("float32", [[1.5], [2.5]], False),
        ("float32", [1.5], False),
        ("float32", [1.5, 2.5, 3.5], False),
        ("float32", [1e39, 0.0], False),
        ("float64", [1e39, 0.0], True),
        ("float32", [True, 1.5], False),
        ("float32", ["1.5", "2.5"], False),
        ("float32", None, False),
        ("bytes", ["a", "\u00e9"], True),
        ("bytes", ["a", 1], False),
        ("bytes", ["a"], False),
        ("int8", [1, 200], False),
    ],
)
def test_an_answers_data_are_of_its_datatype(dtype: str, data: object, is_right: bool) -> None:
    """Of an upstream, which may be of another version, or lie; few elements are checked without an array."""
    port = Port("y", dtype, (1, 2))
    model = Signature("m", "test", (Port("x", "int64", (1,)),), (port,), (frozenset({"x"}),))
    asked = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}
    request = read_request(json.dumps({"inputs": [asked]}).encode(), None, model)
    about = {"name": "y", "shape": [1, 2], "datatype": DATATYPES[dtype], "data": data}
    answer = json.dumps({"model_name": "m", "outputs": [about]}).encode()
    with nullcontext() if is_right else pytest.raises(InputError):
        check_reply(InferBody(answer, None), request, model)


@pytest.mark.parametrize(
    ("dtype", "shape", "element"),
    [
        ("bytes", (1,), b'"ab"'),
        ("int64", (1, 1), b"7"),
        ("float32", (0,), b"0.5"),
        ("int8", (9, 10**6), b"7"),
    ],
)
def test_data_that_is_longer_or_shorter_than_its_shape_is_not_decoded(
    dtype: str, shape: tuple[int, ...], element: bytes
) -> None:
    """16 MB of it stopped the event loop, with all that was to be answered, for 0.4 s, and took 200 MB."""
    data = msgspec.Raw(b"[" + b",".join([element] * 50_000) + b"]")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="elements"):
            read_json(dtype, shape, data)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(bytes(data)) + 10_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("dims", "shape", "is_right"),
    [
        (("batch", 8), [3, 8], True),
        ((None, 8), [3, 8], True),
        (("batch", "length"), [1, 2], True),
        (None, [1, 2, 3], True),
        (("batch", 8), [3, 7], False),
        (("batch", 8), [8], False),
        (("batch", 8), [-1, 8], False),
    ],
)
def test_an_answer_has_any_size_in_an_open_dimension(
    dims: tuple[int | str | None, ...] | None, shape: list[int], is_right: bool
) -> None:
    """ONNX models name open dimensions; an upstream that answered one of them was taken for a liar."""
    port = Port("y", "float32", dims)
    model = Signature("m", "test", (Port("x", "int64", (1,)),), (port,), (frozenset({"x"}),))
    asked = {"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}
    request = read_request(json.dumps({"inputs": [asked]}).encode(), None, model)
    about = {"name": "y", "shape": shape, "datatype": "FP32", "data": [0.0] * abs(prod(shape))}
    answer = json.dumps({"model_name": "m", "outputs": [about]}).encode()
    with nullcontext() if is_right else pytest.raises(InputError, match="was answered as"):
        check_reply(InferBody(answer, None), request, model)
