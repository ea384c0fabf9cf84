"""Requests that would stop the event loop while they are decoded are refused before."""

import json
import tracemalloc
from collections.abc import Sequence
from math import prod
from unittest.mock import Mock

import pytest

from pliant.errors import InputError
from pliant.ir.port import Port
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.inference import Signature, read_request
from pliant.serve.protocol.oip_tensors import DATATYPES

N = 200_000


def model(*ports: Port) -> Signature:
    return Signature("m", "test", ports, (), (frozenset(port.name for port in ports),))


def tensor(port: Port, shape: Sequence[int], data: object) -> dict[str, object]:
    return {"name": port.name, "shape": list(shape), "datatype": DATATYPES[port.dtype], "data": data}


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """What decodes tensors counts its calls."""
    decoder = Mock()
    for name in ("read_json", "read_bytes"):
        monkeypatch.setattr(f"pliant.serve.protocol.inference.{name}", decoder)
    return decoder


@pytest.mark.parametrize(
    ("port", "shape", "element"),
    [
        (Port("ids", "int64", (1, None)), (1, 101), 7),
        (Port("ids", "int64", ("batch", "tokens")), (11, 10), 7),
        (Port("texts", "bytes", (None,)), (101,), "a"),
        (Port("image", "float32", (None, 3)), (101, 3), 0.5),
    ],
)
def test_an_input_that_is_too_long_by_its_shape_is_not_decoded(
    decoders: Mock, port: Port, shape: tuple[int, ...], element: object
) -> None:
    """Four million `ids`, as many as their shape says, stopped all that was to be answered for 0.45 s."""
    body = json.dumps({"inputs": [tensor(port, shape, [element] * prod(shape))]}).encode()
    with pytest.raises(InputError, match=r"length \d+ .* at most 100 is read"):
        read_request(body, None, model(port), max_length=100)
    assert decoders.call_count == 0


def test_every_input_is_bounded_not_only_the_first(decoders: Mock) -> None:
    """A mask may be the long one; the request is refused, however short its first input is."""
    ids, mask = (Port(name, "int64", (1, None)) for name in ("ids", "mask"))
    body = json.dumps({"inputs": [tensor(ids, (1, 1), [7]), tensor(mask, (1, 101), [1] * 101)]}).encode()
    with pytest.raises(InputError, match="'mask'"):
        read_request(body, None, model(ids, mask), max_length=100)
    assert decoders.call_count == 1


def test_fixed_dimensions_do_not_count_as_length(decoders: Mock) -> None:
    """An embedding of 768 numbers is one position."""
    port = Port("x", "float32", (1, None, 768))
    body = json.dumps({"inputs": [tensor(port, (1, 100, 768), [])]}).encode()
    read_request(body, None, model(port), max_length=100)
    assert decoders.call_count == 1


IMAGE = Port("image", "float32", (None, 3, 512, 512))
"""Of three times as many numbers as are read as JSON."""


@pytest.mark.parametrize(
    "port",
    [IMAGE, Port("words", "bytes", (None, Limits().n_elements + 1)), Port("any", "int64", None)],
    ids=["numbers", "texts", "any shape"],
)
def test_an_input_of_legal_length_and_large_fixed_dimensions_is_not_decoded(
    decoders: Mock, port: Port
) -> None:
    """A million numbers as JSON stopped the event loop for 0.2 s, from a client that is allowed to ask."""
    shape = [1, *(port.dims or (None, Limits().n_elements + 1))[1:]]
    body = json.dumps({"inputs": [tensor(port, shape, [])]}).encode()
    with pytest.raises(InputError, match=r"at most 262144 are read\. Send numbers as binary tensors"):
        read_request(body, None, model(port), max_length=100)
    assert decoders.call_count == 0


def test_inputs_are_bounded_together(decoders: Mock) -> None:
    """A request may bring 64 of them."""
    ports = [Port(name, "float32", (1, 150_000)) for name in "ab"]
    body = json.dumps({"inputs": [tensor(port, (1, 150_000), []) for port in ports]}).encode()
    with pytest.raises(InputError, match=r"up to 'b'.* 300000 elements"):
        read_request(body, None, model(*ports), max_length=100)


def test_a_large_input_is_read_in_binary(decoders: Mock) -> None:
    """Its bytes become an array at once, whatever their number."""
    n_bytes = 4 * prod((1, 3, 512, 512))
    given = {"name": "image", "shape": [1, 3, 512, 512], "datatype": "FP32"}
    head = json.dumps({"inputs": [given | {"parameters": {"binary_data_size": n_bytes}}]}).encode()
    read_request(head + bytes(n_bytes), len(head), model(IMAGE), max_length=100)
    assert decoders.call_count == 1


INPUT = '{"name":"x","shape":[2],"datatype":"BYTES","data":["a","b"]}'


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (f'{{"inputs":[{",".join([INPUT] * (N // 10))}]}}', "at most length 64"),
        (f'{{"inputs":[{INPUT.replace("2", ",".join("1" * N))}]}}', "`shape`"),
        (f'{{"inputs":[{INPUT}],"outputs":[{",".join([chr(123) + chr(125)] * N)}]}}', "`outputs`"),
        (f'{{"inputs":[{INPUT}],"parameters":{{"a":[{",".join(["[]"] * N)}]}}}}', "`parameters`"),
        (f'{{"inputs":[{INPUT[:-1]},"parameters":{{"a":[{",".join(["[]"] * N)}]}}}}]}}', "`parameters`"),
        (f'{{"inputs":[{INPUT[:-2]}{chr(44)}{",".join([chr(34) * 2] * N)}]}}]}}', "takes 2 elements"),
    ],
    ids=["inputs", "shape", "outputs", "parameters", "an input's parameters", "texts"],
)
def test_no_part_of_a_request_is_decoded_at_any_length(body: str, named: str) -> None:
    """16 MB of parameters took a second, of outputs 0.8: whatever a client can repeat is bounded.

    By memory, of which each decoded value takes 8 bytes at least, beside copies of what came.
    """
    content, port = body.encode(), Port("x", "bytes", (None,))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=named):
            read_request(content, None, model(port), Limits(), 100)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(content) + 50_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["", 'say "so"', "\\", '\\"', '\\\\"" \\'])
def test_texts_of_quotes_and_backslashes_are_read(text: str) -> None:
    """They are counted without being decoded, and none that fits may be refused."""
    port = Port("x", "bytes", (None,))
    body = json.dumps({"inputs": [tensor(port, (3,), [text] * 3)]}).encode()
    assert list(read_request(body, None, model(port), max_length=3).tensors["x"]) == [text.encode()] * 3


@pytest.mark.parametrize("shape", ["[-1]", "[1.5]", '"two"'])
def test_a_shape_that_is_none_is_shown_with_what_to_give(shape: str) -> None:
    """The refusal showed the decoder's words and its path into the array."""
    body = f'{{"inputs": [{{"name": "x", "shape": {shape}, "datatype": "FP32", "data": [1]}}]}}'
    with pytest.raises(InputError) as refused:
        read_request(body.encode(), None, model(Port("x", "float32", (1,))))
    assert str(refused.value) == f"`shape` is {shape}; give a list of whole numbers, 0 or more."
