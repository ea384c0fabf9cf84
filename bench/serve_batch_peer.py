"""A peer of bench/serve_batch.py: onnxruntime in a simple Starlette app with a thread pool.

Prints its address, and serves until it is terminated. It supports the part of the Open Inference Protocol
that the bench uses.
"""

import argparse
import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def app(file: str, n_threads: int, n_workers: int) -> Starlette:
    """Each request is one run on `n_threads` threads; `n_workers` run concurrently."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = n_threads, 1
    session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
    pool = ThreadPoolExecutor(n_workers)

    def answer(body: bytes) -> bytes:
        asked: Any = msgspec.json.decode(body)
        feeds = {x["name"]: np.array(x["data"], np.int64).reshape(x["shape"]) for x in asked["inputs"]}
        (y,) = session.run(None, feeds)
        output = {"name": "y", "datatype": "FP32", "shape": y.shape, "data": y.ravel().tolist()}
        return msgspec.json.encode({"model_name": "minilm", "outputs": [output]})

    async def infer(request: Request) -> Response:
        body = await request.body()
        found = await asyncio.get_running_loop().run_in_executor(pool, answer, body)
        return Response(found, media_type="application/json")

    return Starlette(routes=[Route("/v2/models/minilm/infer", infer, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    made = app(args.file, args.threads, args.workers)
    uvicorn.Server(uvicorn.Config(made, log_level="error", access_log=False)).run([sock])


if __name__ == "__main__":
    main()
