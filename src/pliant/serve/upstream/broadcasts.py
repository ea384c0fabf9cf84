"""Tell the nodes below of changes, to each the latest advert, one call at a time."""

from typing import final

from pliant.errors import NodeError
from pliant.route.node_identity import Identity
from pliant.route.predecessors import Predecessors
from pliant.serve.answers.metrics import Metrics
from pliant.serve.upstream.client import Client

TELL_PATH = "/v2/pliant/tell"
TELL_S = 10.0
"""How long a node below may take to answer."""


@final
class Broadcasts:
    """Calls on the event loop. `identity` is this node's."""

    def __init__(
        self, predecessors: Predecessors, client: Client, identity: Identity, metrics: Metrics
    ) -> None:
        self._predecessors, self._client = predecessors, client
        self._identity, self._metrics = identity, metrics
        self._latest: dict[str, bytes] = {}
        """What each predecessor with a call under way is to be told last."""

    def replace(self, predecessor: str, body: bytes) -> bool:
        """Have `predecessor` told `body` next; whether `send` has to be started for it."""
        is_idle = predecessor not in self._latest
        self._latest[predecessor] = body
        return is_idle

    async def send(self, predecessor: str) -> None:
        """One call at a time: whoever does not answer would have one for each change, for TELL_S each."""
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
            self._predecessors.forget(predecessor)
        self._metrics.broadcasts.labels(outcome).inc()
