"""Notify downstream nodes of changes: only the latest advert, one call at a time for each node."""

from typing import final

from pliant.errors import NodeError
from pliant.route.node_identity import Identity
from pliant.route.predecessors import Predecessors
from pliant.serve.answers.metrics import Metrics
from pliant.serve.upstream.client import Client

TELL_PATH = "/v2/pliant/tell"
TELL_S = 10.0
"""Timeout of a notification."""


@final
class Broadcasts:
    """Sends notifications on the event loop. `identity` is this node's."""

    def __init__(
        self, predecessors: Predecessors, client: Client, identity: Identity, metrics: Metrics
    ) -> None:
        self._predecessors, self._client = predecessors, client
        self._identity, self._metrics = identity, metrics
        self._latest: dict[str, bytes] = {}
        """The latest notification for each predecessor with a call in progress."""

    def replace(self, predecessor: str, body: bytes) -> bool:
        """Set the next notification of `predecessor`; returns whether the caller must start `send`."""
        is_idle = predecessor not in self._latest
        self._latest[predecessor] = body
        return is_idle

    async def send(self, predecessor: str) -> None:
        """Send notifications one at a time.

        Otherwise a node that does not answer would hold one call per change for TELL_S each.
        """
        body = None
        try:
            while body is not self._latest[predecessor]:
                body = self._latest[predecessor]
                await self._tell(predecessor, body)
        finally:
            del self._latest[predecessor]

    async def _tell(self, predecessor: str, body: bytes) -> None:
        listener = self._predecessors.listener_of(predecessor)
        if listener is None:
            return
        url, outcome = f"{listener.address}{TELL_PATH}", "ok"
        try:
            headers = self._identity.headers()
            response = await self._client.call("POST", url, headers, body, TELL_S, listener.token)
            if response.status != 200:
                outcome = "refused"
        except NodeError:
            outcome = "failed"
        if outcome != "ok":
            self._predecessors.remove(predecessor)
        self._metrics.broadcasts.labels(outcome).inc()
