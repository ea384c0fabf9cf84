"""Compressed messages over gRPC are read, and count as they are decompressed."""

import gzip
import tracemalloc
import zlib
from typing import Any

import numpy as np
import pytest

from pliant.errors import InputError, NodeError
from pliant.serve.access.roles import GRPC
from pliant.serve.http.limits import Limits
from tests.serve.models import Echo, Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, running

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
from pliant.serve.grpc.message_coding import AS_SENT, decompress  # noqa: E402 - needs grpcio's extra
from pliant.serve.grpc.wire_messages import METHODS, message  # noqa: E402

BODY_BYTES = 1 << 20


def _asking(text: bytes) -> Any:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [text]}}
    return message("ModelInferRequest")(model_name="upper", inputs=[tensor])


def _answer(node: Running, content: bytes, compression: Any) -> str:
    with grpc.insecure_channel(str(node.grpc)) as channel:
        infer = channel.unary_unary(f"{GRPC}/ModelInfer")
        answer = infer(content, timeout=PATIENCE_S, compression=compression)
    found: str = message("ModelInferResponse").FromString(answer).raw_output_contents[0].decode()
    return found


@pytest.mark.parametrize("coding", ["NoCompression", "Gzip", "Deflate"])
def test_a_message_is_read_however_it_was_compressed(coding: str) -> None:
    """By any client; one that becomes too long is refused, and the node answers the next."""
    compression = getattr(grpc.Compression, coding)
    limits = Limits(body_bytes=BODY_BYTES, buffer_bytes=4 * BODY_BYTES, client_buffer_bytes=2 * BODY_BYTES)
    with running(Upper(), grpc=ANY_PORT, limits=limits) as node:
        text = b"ab" * 400
        assert text.upper().decode() in _answer(node, _asking(text).SerializeToString(), compression)
        if coding != "NoCompression":  # else the library refuses it, or its connection is closed
            with pytest.raises(grpc.RpcError) as refused:
                _answer(node, _asking(b"a" * 8 * BODY_BYTES).SerializeToString(), compression)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert text.upper().decode() in _answer(node, _asking(text).SerializeToString(), compression)


def test_long_answers_are_compressed_for_callers_that_accept_gzip() -> None:
    """As over REST: others, and short answers, get them plain."""
    only_plain = ("grpc.compression_enabled_algorithms_bitset", 1)
    with running(Upper(), grpc=ANY_PORT) as node:
        for options, n_words, is_coded in (((), 500, True), ((), 4, False), ((only_plain,), 500, False)):
            text = b"ab" * n_words
            with grpc.insecure_channel(str(node.grpc), options=(AS_SENT, *options)) as channel:
                infer = channel.unary_unary(f"{GRPC}/ModelInfer")
                sent = infer(_asking(text).SerializeToString(), timeout=PATIENCE_S)
            assert (sent[:2] == b"\x1f\x8b") is is_coded
            content = gzip.decompress(sent) if is_coded else sent
            answer = message("ModelInferResponse").FromString(content)
            assert text.upper() in answer.raw_output_contents[0]


def test_numbers_that_gzip_hardly_shortens_are_sent_plain() -> None:
    """With compression, a call for 1.5 MB of them took twenty times as long."""
    numbers = np.random.default_rng(0).standard_normal((1, 4096)).astype(np.float32)
    tensor = {"name": "float32", "datatype": "FP32", "shape": numbers.shape}
    asked = message("ModelInferRequest")(
        model_name="echo", inputs=[tensor], raw_input_contents=[numbers.tobytes()]
    )
    with (
        running(Echo(("float32",)), grpc=ANY_PORT) as node,
        grpc.insecure_channel(str(node.grpc), options=(AS_SENT,)) as channel,
    ):
        infer = channel.unary_unary(f"{GRPC}/ModelInfer")
        sent = infer(asked.SerializeToString(), timeout=PATIENCE_S)
    assert message("ModelInferResponse").FromString(sent).raw_output_contents[0] == numbers.tobytes()


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress])
def test_a_bomb_stops_at_the_limit(compress: Any) -> None:
    """What it would become is never in memory."""
    bomb = compress(bytes(64 * BODY_BYTES))
    tracemalloc.start()
    try:
        with pytest.raises(NodeError, match="longer than") as refused:
            decompress(bomb, BODY_BYTES)
        assert tracemalloc.get_traced_memory()[1] < 4 * BODY_BYTES
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413


def test_what_is_not_compressed_is_left_as_it_is() -> None:
    """No request of any method begins as compressed data do, not even an empty one."""
    for name in METHODS:
        request = message(f"{name}Request")
        assert decompress(b"", 9) == b""
        for field in request.DESCRIPTOR.fields:
            kind = 0 if field.type in (field.TYPE_BOOL, field.TYPE_INT64, field.TYPE_UINT64) else 2
            tag = bytes([field.number << 3 | kind])
            assert all(decompress(tag + bytes([x]), 9) == tag + bytes([x]) for x in range(256)), field.name
    whole = _asking(b"ab").SerializeToString()
    assert decompress(whole, 9) == whole


def test_damage_is_refused() -> None:
    """Cut off, or followed by more."""
    whole = gzip.compress(b"ab" * 99)
    for damaged in (whole[:-9], whole + b"more"):
        with pytest.raises(InputError):
            decompress(damaged, BODY_BYTES)
