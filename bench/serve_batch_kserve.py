"""A peer of bench/serve_batch.py: the KServe SDK's own model server around onnxruntime.

Runs in a separate environment (made by the bench), so it imports nothing of this project. Serves at
--http_port until it is terminated.
"""

import argparse
import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kserve
import onnxruntime
from kserve import InferOutput, InferRequest, InferResponse


class Minilm(kserve.Model):  # type: ignore[misc]
    """Each request is one run on one thread; two run concurrently."""

    def __init__(self, file: str) -> None:
        super().__init__("minilm")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(file, settings, providers=["CPUExecutionProvider"])
        self._pool = ThreadPoolExecutor(2)
        self.ready = True

    async def predict(self, payload: InferRequest, headers: Any = None, **_: Any) -> InferResponse:
        feeds = {x.name: x.as_numpy() for x in payload.inputs}
        run = self._session.run
        (y,) = await asyncio.get_running_loop().run_in_executor(self._pool, run, None, feeds)
        output = InferOutput("y", list(y.shape), "FP32")
        output.set_data_from_numpy(y, binary_data=False)
        return InferResponse(payload.id or "1", self.name, [output])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, parents=[kserve.model_server.parser])
    parser.add_argument("--file", required=True)
    args = parser.parse_args()
    server = kserve.ModelServer(
        http_port=args.http_port, enable_grpc=False, workers=1, enable_docs_url=False, access_log_format=None
    )
    server.start([Minilm(args.file)])
