"""What becomes of gRPC calls when the server ends."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc

from pliant.serve.access.access import AccessControl
from pliant.serve.grpc.grpc_server import serve_grpc
from pliant.serve.grpc.grpc_service import GrpcService
from pliant.serve.grpc.wire_messages import SERVICE, message
from pliant.serve.http.limits import Limits
from pliant.serve.repository.front_node import FrontNode
from pliant.serve.telemetry.tracing import make_tracer
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running
from tests.serve.repository.test_repository_api import Shelf, serving

N_CALLS = 16


def test_calls_that_arrive_at_the_end_are_answered_or_refused() -> None:
    """A client sends a call that was refused as unavailable to another node, and no cancelled one."""
    with serving(Shelf("first")) as node, ThreadPoolExecutor(N_CALLS) as pool:
        assert node.loop is not None
        codes = asyncio.run_coroutine_threadsafe(_end_with_calls(node, pool), node.loop).result(PATIENCE_S)
    assert codes.total() == N_CALLS
    assert codes.keys() <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}, codes


async def _end_with_calls(node: Running, pool: ThreadPoolExecutor) -> Counter[grpc.StatusCode]:
    assert node.repository is not None
    front = FrontNode(node.repository, "here", "0")
    service = GrpcService(node.repository, front, AccessControl(), Limits(), make_tracer())
    loop, barrier = asyncio.get_running_loop(), threading.Barrier(N_CALLS + 1)
    async with serve_grpc(ANY_PORT, service, lambda: None, Limits()) as at:
        calls = [loop.run_in_executor(pool, _call, str(at), barrier) for _ in range(N_CALLS)]
        await asyncio.to_thread(barrier.wait, PATIENCE_S)  # all are connected
        threading.Event().wait(0.5)  # the event loop is busy while the calls arrive
    return Counter(await asyncio.gather(*calls))


def _call(target: str, barrier: threading.Barrier) -> grpc.StatusCode:
    with grpc.insecure_channel(target) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_S)
        ask = channel.unary_unary(
            f"/{SERVICE}/ServerMetadata",
            request_serializer=message("ServerMetadataRequest").SerializeToString,
            response_deserializer=message("ServerMetadataResponse").FromString,
        )
        barrier.wait(PATIENCE_S)
        try:
            ask(message("ServerMetadataRequest")(), timeout=PATIENCE_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK
