"""What stands for a model's node where a call is for none: the repository, health, the server itself."""

from typing import final

from pliant.route.node_identity import Identity
from pliant.serve.answers.metrics import Metrics
from pliant.serve.http.security import Address
from pliant.serve.node.serving_node import Node
from pliant.serve.repository.model_repository import ModelRepository


@final
class FrontNode:
    """What stands for a model's node where there is none: answers are counted with the first model's."""

    def __init__(self, repository: ModelRepository, name: str, version: str) -> None:
        self.name, self.identity = name, Identity(None, version)
        self._repository, self._spare = repository, Metrics(lambda: iter(()))
        self.grpc: Address | None = None
        """Where gRPC is answered, once it is."""

    @property
    def node(self) -> Node | None:
        """That of the first model that is loaded."""
        return next(iter(self._repository.nodes), None)

    @property
    def metrics(self) -> Metrics:
        return self._spare if self.node is None else self.node.metrics

    @property
    def is_draining(self) -> bool:
        return self._repository.is_draining
