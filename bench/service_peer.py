"""The peer of a forwarding node: a bare forwarder with Starlette and httpx.

Prints its address, and serves until it is terminated. It forwards without parsing, checks, choices or
measurements.
"""

import argparse
import socket

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def forwarder(upstream: str) -> Starlette:
    """Every POST goes to the same path of `upstream`, over persistent connections."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    client = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)

    async def forward(request: Request) -> Response:
        content = await request.body()
        headers = {"content-type": request.headers["content-type"]}
        answer = await client.post(upstream + request.url.path, content=content, headers=headers)
        return Response(answer.content, answer.status_code, media_type=answer.headers["content-type"])

    return Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("upstream")
    upstream = parser.parse_args().upstream
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
    server = uvicorn.Server(uvicorn.Config(forwarder(upstream), log_level="error", access_log=False))
    server.run([sock])


if __name__ == "__main__":
    main()
