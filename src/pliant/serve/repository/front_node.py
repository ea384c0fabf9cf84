"""Stands in for a model's node for calls without a model: repository, health, server metadata."""

from typing import final

from pliant.route.node_identity import Identity
from pliant.serve.access.security import ListenAddress
from pliant.serve.answers.metrics import Metrics, MetricsByModel
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.repository.model_repository import ModelRepository


@final
class FrontNode:
    """Stands in for a model's node; its responses are counted in the first model's metrics."""

    def __init__(self, repository: ModelRepository, name: str, version: str) -> None:
        self.name, self.identity = name, Identity(None, version)
        self._repository, self._spare = repository, Metrics()
        self.grpc: ListenAddress | None = None
        """The gRPC address, once the server listens."""

    @property
    def node(self) -> ServingNode | None:
        """The node of the first loaded model."""
        return next(iter(self._repository.nodes), None)

    @property
    def metrics(self) -> Metrics:
        return next(iter(self.metrics_by_model.values())) if self.node is None else self.node.metrics

    @property
    def metrics_by_model(self) -> MetricsByModel:
        """The metrics of all models that were loaded; its own, without a name, before there is one."""
        return self._repository.metrics or {("", ""): self._spare}

    @property
    def is_draining(self) -> bool:
        return self._repository.is_draining
