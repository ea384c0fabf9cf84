"""KServe's own clients ask a node: run by a Python that has kserve, with the node's URL and gRPC address.

Prints what they read as JSON, one line.
"""

import asyncio
import json
import sys
from typing import Any

import numpy as np
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

NAME, TEXT = "upper", "a moving film"


def asked(is_binary: bool, **parameters: Any) -> InferRequest:
    tensor = InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([TEXT.encode()], object), binary_data=is_binary)
    return InferRequest(NAME, [tensor], request_id="7", parameters=parameters)


def shown(answer: Any) -> dict[str, Any]:
    outputs = {output.name: output.as_numpy().tolist() for output in answer.outputs}
    texts = [text.decode() if isinstance(text, bytes) else text for text in outputs["upper"]]
    return {"id": answer.id, "model": answer.model_name, **outputs, "upper": texts}


async def over_rest(url: str) -> dict[str, Any]:
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        return {
            "live": await client.is_server_live(url),
            "ready": await client.is_server_ready(url),
            "model": await client.is_model_ready(url, NAME),
            "other": await client.is_model_ready(url, "other"),
            "plain": shown(await client.infer(url, asked(False), model_name=NAME)),
            "binary": shown(await client.infer(url, asked(True), model_name=NAME)),
        }


async def over_grpc(address: str) -> dict[str, Any]:
    async with InferenceGRPCClient(address) as client:
        return {
            "live": await client.is_server_live(),
            "ready": await client.is_server_ready(),
            "model": await client.is_model_ready(NAME),
            "other": await client.is_model_ready("other"),
            "plain": shown(await client.infer(asked(False))),
            "binary": shown(await client.infer(asked(True, best_effort=True))),
        }


async def main(url: str, address: str) -> None:
    print(json.dumps({"rest": await over_rest(url), "grpc": await over_grpc(address)}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
