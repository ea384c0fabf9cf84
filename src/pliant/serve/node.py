"""One node: requests in, answers out, from the model here. Knows no HTTP."""

import logging
from dataclasses import dataclass
from typing import final

from pliant.errors import NodeError, PliantError
from pliant.serve.admission import Admission
from pliant.serve.inference import Body, read_request, write_reply
from pliant.serve.limits import Limits
from pliant.serve.metrics import Metrics
from pliant.serve.served import Served, Tensors

_LOG = logging.getLogger("pliant.serve")


@dataclass(frozen=True, slots=True)
class Call:
    """A request as it came."""

    body: bytes
    header_bytes: int | None


@final
class Node:
    """Call on one event loop."""

    def __init__(self, name: str, served: Served, *, queue: int, dilation: float, limits: Limits) -> None:
        self.name, self.served, self.limits = name, served, limits
        self.is_draining = False
        self._n_open = 0
        self._admission = Admission(queue, dilation)
        self.metrics = Metrics(lambda: self._admission.n_waiting, lambda: iter(()))

    @property
    def n_open(self) -> int:
        """Requests that are being answered."""
        return self._n_open

    async def infer(self, call: Call) -> Body:
        """The answer. Raises InputError for what the model does not take, NodeError for a full queue."""
        self._n_open += 1
        try:
            return await self._answer(call)
        finally:
            self._n_open -= 1

    async def _answer(self, call: Call) -> Body:
        model = self.served.signature
        request = read_request(call.body, call.header_bytes, model, self.limits)
        done = await self._admission.run(lambda: self._compute(request.tensors), 0.0)
        return write_reply(request, done.result, model)

    def _compute(self, tensors: Tensors) -> Tensors:
        """On the worker thread. A model's own mistake is this request's end, not the connection's."""
        try:
            return self.served.answer(tensors)
        except PliantError:
            raise
        except Exception as error:
            _LOG.exception("%s failed", self.served.signature.name)
            raise NodeError("the model failed on this input; the node's log says how.", status=500) from error

    def drain(self) -> None:
        """Say from now on that the node is not ready; it answers what comes nevertheless."""
        self.is_draining = True

    async def close(self) -> None:
        """Once all that was let in is answered."""
        self._admission.close()
        self.served.close()
