"""The public client of the Open Inference Protocol, against a node."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pliant.serve.protocol.oip_tensors import DATATYPES, numpy_dtype
from tests.serve.models import Echo, Upper, texts
from tests.serve.nodes import running

triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with running(Upper()) as node, triton.InferenceServerClient(node.address) as client:
        yield client


def asked(name: str, array: np.ndarray, datatype: str, is_binary: bool) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=is_binary)
    return tensor


def test_the_client_finds_the_server_and_its_model(client: Any) -> None:
    """Health, readiness and metadata, by the client's own words for them."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("upper")
    assert client.is_model_ready("upper", "1")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    assert client.get_model_metadata("upper")["outputs"][1] == {
        "name": "n",
        "datatype": "INT64",
        "shape": [-1],
    }


def test_statistics_and_configurations_are_read_by_the_client() -> None:
    """[serve.clients] statistics of one model, or without a name of all models at the address."""
    with running(Upper(), [Echo()]) as node, triton.InferenceServerClient(node.address) as client:
        client.infer("upper", [asked("text", texts("a"), "BYTES", True)])
        every = client.get_inference_statistics()["model_stats"]
        assert [(one["name"], one["inference_count"]) for one in every] == [("upper", 1), ("echo", 0)]
        for version in ("", "1"):
            assert client.get_inference_statistics("upper", version)["model_stats"] == every[:1]
            config = client.get_model_config("echo", version)
            first = {"name": "bool", "data_type": "TYPE_BOOL", "dims": [-1, -1], "optional": False}
            assert config["name"] == "echo"
            assert config["input"][0] == first


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("is_binary_output", [True, False, None])
def test_text_is_answered_in_every_form(client: Any, is_binary: bool, is_binary_output: bool | None) -> None:
    """JSON and bytes, in each direction; None is the client's default, all outputs in bytes."""
    outputs = None
    if is_binary_output is not None:
        outputs = [triton.InferRequestedOutput(x, binary_data=is_binary_output) for x in ("n", "upper")]
    tensor = asked("text", texts("grüße"), "BYTES", is_binary)
    result = client.infer("upper", [tensor], outputs=outputs, request_id="r1")
    word = result.as_numpy("upper")[0]
    assert (word if isinstance(word, str) else word.decode()) == "GRüßE" or word == "grüße".encode().upper()
    assert result.as_numpy("n").tolist() == [len("grüße".encode())]
    assert result.get_response()["id"] == "r1"


@pytest.mark.parametrize("dtype", sorted(DATATYPES))
def test_every_datatype_comes_back_as_it_went(dtype: str) -> None:
    """In bytes, and in JSON where the client has a form for it (it has none for the half-width floats)."""
    datatype = DATATYPES[dtype]
    if dtype == "bytes":
        array = texts(b"", b"\x00\xff", b"abc", b"d").reshape(2, 2)
    else:
        array = np.array([[0, 1], [1, 0]]).astype(numpy_dtype(dtype))
    with running(Echo((dtype,))) as node, triton.InferenceServerClient(node.address) as client:
        result = client.infer("echo", [asked(dtype, array, datatype, True)]).as_numpy(dtype)
        assert result.tolist() == array.tolist()
        if dtype in ("float16", "bfloat16", "bytes"):
            return
        plain = [triton.InferRequestedOutput(dtype, binary_data=False)]
        result = client.infer("echo", [asked(dtype, array, datatype, False)], outputs=plain).as_numpy(dtype)
        assert result.dtype == array.dtype
        assert result.tolist() == array.tolist()


def test_several_tensors_share_a_body_in_both_forms() -> None:
    """Bytes of tensors follow in the order of their inputs, whatever lies between in JSON."""
    names = ("int32", "bytes", "float32", "bool")
    arrays = {
        "int32": np.arange(6, dtype=np.int32).reshape(2, 3),
        "bytes": texts("a", "bc").reshape(1, 2),
        "float32": np.array([[1.5]], np.float32),
        "bool": np.array([[True, False]]),
    }
    with running(Echo(names)) as node, triton.InferenceServerClient(node.address) as client:
        inputs = [
            asked(name, arrays[name], DATATYPES[name], is_binary=i % 2 == 0) for i, name in enumerate(names)
        ]
        outputs = [triton.InferRequestedOutput(x, binary_data=i % 2 == 1) for i, x in enumerate(names[::-1])]
        result = client.infer("echo", inputs, outputs=outputs)
        for name in ("int32", "float32", "bool"):
            assert result.as_numpy(name).tolist() == arrays[name].tolist()


def test_the_client_reads_our_errors(client: Any) -> None:
    """Its exception carries the reason."""
    from tritonclient.utils import InferenceServerException

    tensor = asked("text", np.array([1], np.int32), "INT32", True)
    with pytest.raises(InferenceServerException, match="must be BYTES"):
        client.infer("upper", [tensor])


@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("packs", ["gzip", "deflate", None])
@pytest.mark.parametrize("unpacks", ["gzip", "deflate", None])
def test_the_client_packs_its_requests_and_unpacks_answers(
    client: Any, packs: str | None, unpacks: str | None, is_binary: bool
) -> None:
    """Long enough to be packed; an answer for `deflate` is plain, which the client takes as well."""
    text = "a word and " * 90
    tensor = asked("text", texts(text), "BYTES", is_binary)
    result = client.infer(
        "upper",
        [tensor],
        outputs=[triton.InferRequestedOutput(x, binary_data=is_binary) for x in ("upper", "n")],
        request_compression_algorithm=packs,
        response_compression_algorithm=unpacks,
    )
    assert result.as_numpy("n").tolist() == [len(text)]
    word = result.as_numpy("upper")[0]
    assert (word if isinstance(word, str) else word.decode()) == text.upper()
