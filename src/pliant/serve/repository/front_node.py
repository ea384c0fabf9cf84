"""What stands for a model's node where a call is for none: the repository, health, the server itself."""

from typing import final

from pliant.route.node_identity import Identity
from pliant.serve.node.metrics import Metrics
from pliant.serve.repository.model_repository import ModelRepository


@final
class FrontNode:
    """What stands for a model's node where there is none: answers are counted with the first model's."""

    def __init__(self, repository: ModelRepository, name: str, version: str) -> None:
        self.name, self.identity = name, Identity(None, version)
        self._repository, self._spare = repository, Metrics(lambda: iter(()))

    @property
    def metrics(self) -> Metrics:
        return next((node.metrics for node in self._repository.nodes), self._spare)

    @property
    def is_draining(self) -> bool:
        return self._repository.is_draining
