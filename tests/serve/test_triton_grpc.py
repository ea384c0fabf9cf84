"""The public gRPC client of the Open Inference Protocol against a node, and callers that mean it no good."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pliant.serve.access.security import Tls
from pliant.serve.grpc.message_coding import AS_SENT
from pliant.serve.grpc.wire_messages import SERVICE, message
from pliant.serve.http.limits import Limits
from pliant.serve.protocol.oip_tensors import DATATYPES, numpy_dtype
from tests.serve.models import Echo, Upper, texts
from tests.serve.nodes import ANY_PORT, Running, running

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
triton = pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
Refused = triton.InferenceServerException
CLIENTS = 24


def client_of(node: Running, **more: Any) -> Any:
    assert node.node is not None
    return triton.InferenceServerClient(str(node.grpc), **more)


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), [Echo()], grpc=ANY_PORT, name="here", operator_tokens=("operator" * 4,)) as found:
        yield found


@pytest.fixture(scope="module")
def client(node: Running) -> Iterator[Any]:
    with client_of(node) as client:
        yield client


def asked(name: str, array: np.ndarray, datatype: str) -> Any:
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array)
    return tensor


def upper(client: Any, text: str, **more: Any) -> str:
    found = client.infer("upper", [asked("text", texts(text), "BYTES")], **more).as_numpy("upper")[0]
    return str(found.decode())


def call(channel: Any, method: str, body: bytes, **more: Any) -> bytes:
    """`body` as it is to a method."""
    found: bytes = channel.unary_unary(f"/{SERVICE}/{method}")(body, timeout=60, **more)
    return found


def status(do: Callable[[], object]) -> tuple[str, str]:
    """What a call is refused with."""
    with pytest.raises(grpc.RpcError) as refused:
        do()
    return refused.value.code().name, refused.value.details()


def test_the_client_finds_the_server_and_its_models(node: Running, client: Any) -> None:
    """[serve.clients] health, metadata, configuration and index, by the client's own words for them."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("upper")
    assert client.is_model_ready("upper", "1")
    assert not client.is_model_ready("upper", "2")
    assert not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata().extensions
    about = client.get_model_metadata("upper")
    assert [(p.name, p.datatype, list(p.shape)) for p in about.inputs] == [("text", "BYTES", [-1])]
    config = client.get_model_config("echo").config
    assert [(p.name, p.data_type) for p in config.input][:2] == [("bool", 1), ("uint8", 2)]
    assert list(config.input[0].dims) == [-1, -1]
    index = client.get_model_repository_index(headers=node.operator)
    assert [(m.name, m.state) for m in index.models] == [("upper", "READY"), ("echo", "READY")]


def test_text_is_answered_and_counted(node: Running, client: Any) -> None:
    """[serve.clients] the same request path as REST: its metrics, its statistics, its name for the node."""
    before = client.get_inference_statistics("upper").model_stats[0]
    assert upper(client, "grüße", request_id="r1") == "grüße".encode().upper().decode()
    after = client.get_inference_statistics("upper").model_stats[0]
    assert after.inference_count == before.inference_count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert after.inference_stats.compute_infer.count == before.inference_stats.compute_infer.count + 1
    assert node.node is not None
    text = node.node.metrics.text().decode()
    assert f'path="/{SERVICE}/ModelInfer",status="OK"' in text
    assert 'pliant_requests_total{outcome="ok",target="local"}' in text


@pytest.mark.parametrize("dtype", sorted(DATATYPES))
def test_every_datatype_comes_back_as_it_went(dtype: str) -> None:
    """In raw contents, as this client sends them."""
    if dtype == "bytes":
        array = texts(b"", b"\x00\xff", b"abc", b"d").reshape(2, 2)
    else:
        array = np.array([[0, 1], [1, 0]]).astype(numpy_dtype(dtype))
    with running(Echo((dtype,)), grpc=ANY_PORT) as node, client_of(node) as client:
        result = client.infer("echo", [asked(dtype, array, DATATYPES[dtype])])
        assert result.as_numpy(dtype).tolist() == array.tolist()


def test_the_client_reads_our_errors(client: Any) -> None:
    """The code says whether to ask again, the text why not."""
    number = asked("text", np.array([1], np.int32), "INT32")
    for infer, code, why in (
        (lambda: client.infer("upper", [number]), 3, "must be BYTES"),
        (lambda: client.infer("no", [asked("text", texts("a"), "BYTES")]), 5, "it has 'upper', 'echo'"),
        (lambda: upper(client, "a", model_version="2"), 5, "no version '2'"),
        (lambda: upper(client, "no"), 3, "cannot be read"),
        (lambda: upper(client, "bug"), 13, "the model failed"),
        (lambda: upper(client, "a", parameters={"accuracy_floor": 1}), 9, "never measured"),
        (lambda: upper(client, "a", parameters={"deadline_s": "soon"}), 3, "give a number"),
        (lambda: client.get_model_metadata("no"), 5, "no model 'no'"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=why) as refused:
            infer()
        assert refused.value.status() == f"StatusCode.{_name(code)}"


def test_the_client_reads_compressed_answers(node: Running, client: Any) -> None:
    """[serve.clients] it accepts gzip; one that does not decompress them finds no message."""
    text = "a film " * 140
    assert upper(client, text) == text.upper()
    with client_of(node, channel_args=[AS_SENT]) as plain, pytest.raises(Refused, match=r"(?i)deserializ"):
        upper(plain, text)
    with client_of(node, channel_args=[AS_SENT]) as plain:
        assert upper(plain, "a film") == "A FILM"


def _name(code: int) -> str:
    return next(one.name for one in grpc.StatusCode if one.value[0] == code)


def test_a_call_that_nobody_waits_for_is_dropped(node: Running) -> None:
    """A deadline passes, or the client hangs up, while the request waits for its turn: it is never run."""
    served = Upper()
    with running(served, grpc=ANY_PORT) as node, client_of(node) as client:
        assert node.node is not None
        served.gate.clear()
        with ThreadPoolExecutor() as pool:
            first = pool.submit(upper, client, "first")
            _until(lambda: served.answered == [b"first"])
            with pytest.raises(Refused, match=r"(?i)deadline"):
                upper(client, "late", client_timeout=0.05)
            gone = client.async_infer("upper", [asked("text", texts("gone"), "BYTES")], lambda *_: None)
            _until(lambda: node.node.n_open == 2)
            gone.cancel()
            _until(lambda: node.node.n_open == 1)
            served.gate.set()
            assert first.result() == "FIRST"
        assert upper(client, "next") == "NEXT"
        assert served.answered == [b"first", b"next"]


def _until(holds: Callable[[], bool]) -> None:
    """Wait for another thread, at most a minute."""
    turn = threading.Event()
    for _ in range(6000):
        if holds():
            return
        turn.wait(0.01)
    raise AssertionError("it did not happen within a minute")


def test_the_deadline_of_a_call_is_that_of_its_request(client: Any) -> None:
    """`met` is said where there is a deadline; a client's long timeout does not undo a shorter one."""
    for timeout, parameters in ((None, {}), (60, {}), (60, {"deadline_s": 30}), (None, {"deadline_s": 30})):
        tensor = asked("text", texts("a"), "BYTES")
        answer = client.infer("upper", [tensor], client_timeout=timeout, parameters=parameters).get_response()
        assert ("met" in answer.parameters) == bool(timeout or parameters)


def test_messages_that_are_none_and_too_large_ones_are_refused() -> None:
    """Bytes that are no message; more than is taken, plain and compressed (a bomb of zeros)."""
    limits = Limits(body_bytes=1 << 20)
    with running(Echo(("int8",)), grpc=ANY_PORT, limits=limits) as node:
        assert node.node is not None
        tensor = {"name": "int8", "datatype": "INT8", "shape": [1, 4 << 20]}
        bomb = message("ModelInferRequest")(
            model_name="echo", inputs=[tensor], raw_input_contents=[bytes(4 << 20)]
        ).SerializeToString()
        with grpc.insecure_channel(str(node.grpc)) as channel:
            infer = partial(call, channel, "ModelInfer")
            assert status(lambda: infer(b"\xff" * 50))[0] == "INVALID_ARGUMENT"
            assert status(lambda: infer(bomb))[0] == "RESOURCE_EXHAUSTED"
            assert status(lambda: infer(bomb, compression=grpc.Compression.Gzip))[0] == "RESOURCE_EXHAUSTED"
            assert status(lambda: call(channel, "ModelStreamInfer", b""))[0] == "UNIMPLEMENTED"
            small = message("ModelInferRequest")(
                model_name="echo",
                inputs=[{**tensor, "shape": [1, 1 << 19]}],
                raw_input_contents=[bytes(1 << 19)],
            ).SerializeToString()
            assert len(infer(small, compression=grpc.Compression.Gzip)) > 1 << 19


def test_bodies_that_wait_have_room_for_so_many() -> None:
    """What clients send while others wait is bounded; the refused may come again."""
    limits = Limits(body_bytes=1 << 20, buffer_bytes=3 << 19, client_buffer_bytes=3 << 19)
    served = Upper()
    served.max_length = 1 << 20
    with running(served, grpc=ANY_PORT, limits=limits) as node, client_of(node) as client:
        assert node.node is not None
        served.gate.clear()
        with ThreadPoolExecutor() as pool:
            first = pool.submit(upper, client, "a" * (1 << 19) + "b" * (1 << 18))
            _until(lambda: len(served.answered) == 1)
            with pytest.raises(Refused, match="buffer memory") as refused:
                upper(client, "c" * ((1 << 19) + (1 << 18)))
            assert refused.value.status() == "StatusCode.UNAVAILABLE"
            served.gate.set()
            assert first.result().startswith("AAA")


def test_tokens_are_asked_for_as_over_http() -> None:
    """Health is open to all; the rest is not."""
    tokens = {"tokens": ("client" * 4,), "operator_tokens": ("operator" * 4,)}
    with running(Upper(), grpc=ANY_PORT, **tokens) as node, client_of(node) as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        for headers in (None, {"authorization": "Bearer wrong"}):
            with pytest.raises(Refused, match="Bearer TOKEN") as refused:
                upper(client, "a", headers=headers)
            assert refused.value.status() == "StatusCode.UNAUTHENTICATED"
        assert upper(client, "a", headers={"authorization": f"Bearer {'client' * 4}"}) == "A"


def test_calls_are_encrypted_with_the_certificate_of_http(tmp_path: Path) -> None:
    """A client that trusts another authority does not get through."""
    trustme = pytest.importorskip("trustme", reason="trustme, which makes certificates, is not installed")
    authority, stranger = trustme.CA(), trustme.CA()
    shown = authority.issue_cert("127.0.0.1")
    shown.private_key_pem.write_to_path(tmp_path / "key")
    (tmp_path / "key").chmod(0o600)
    shown.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    authority.cert_pem.write_to_path(tmp_path / "ca")
    stranger.cert_pem.write_to_path(tmp_path / "stranger")
    with running(Upper(), grpc=ANY_PORT, tls=Tls(tmp_path / "cert", tmp_path / "key")) as node:
        with client_of(node, ssl=True, root_certificates=str(tmp_path / "ca")) as client:
            assert upper(client, "a") == "A"
        for wrong in ({"ssl": True, "root_certificates": str(tmp_path / "stranger")}, {}):
            with client_of(node, **wrong) as client, pytest.raises(Refused):
                upper(client, "a", client_timeout=5)


def test_many_clients_at_once_get_their_own_answers(node: Running) -> None:
    """Each over a connection of its own, some over REST."""

    def ask(number: int) -> None:
        words = [f"client {number} asks {i}" for i in range(5)]
        if number % 4 == 0:
            for word in words:
                assert node.post(word).json()["outputs"][0]["data"] == [word.upper()]
            return
        options = triton.KeepAliveOptions()
        arguments = [("grpc.use_local_subchannel_pool", 1)]
        with client_of(node, keepalive_options=options, channel_args=arguments) as client:
            for word in words:
                assert upper(client, word) == word.upper()

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(ask, range(CLIENTS)))


@pytest.mark.usefixtures("lingering")
def test_a_node_that_ends_answers_what_was_called() -> None:
    """No call that was begun is lost, and there is nothing at the port afterwards."""
    served = Upper()
    with running(served, grpc=ANY_PORT) as node, client_of(node) as client, ThreadPoolExecutor() as pool:
        served.gate.clear()
        last = pool.submit(upper, client, "last")
        _until(lambda: served.answered == [b"last"])
        node.stop()
        _until(lambda: node.node is not None and node.node.is_draining)
        served.gate.set()
        assert last.result() == "LAST"
        node.join()
        with pytest.raises(Refused):
            client.is_server_live(client_timeout=5)


def test_a_port_that_is_taken_is_said(node: Running) -> None:
    """Two nodes at one port would each get some of the calls."""
    from pliant.errors import NodeError

    assert node.node is not None
    with pytest.raises(NodeError, match="Name another address"), running(Upper(), grpc=node.grpc):
        pass
