"""Stands in for a model's node for calls without a model: repository, health, server metadata."""

from typing import final

from pliant.route.node_identity import Identity
from pliant.serve.access.security import ListenAddress
from pliant.serve.answers.metrics import Metrics, MetricsByModel
from pliant.serve.node.serving_node import ServingNode
from pliant.serve.repository.model_repository import ModelRepository
from pliant.serve.telemetry.request_context import NO_MODEL


@final
class FrontNode:
    """Stands in for a model's node; its responses are counted without the name of a model."""

    def __init__(self, repository: ModelRepository, name: str, version: str) -> None:
        self.name, self.identity = name, Identity(None, version)
        self.model, self.metrics, self._repository = NO_MODEL, Metrics(), repository
        for family in (self.metrics.body_bytes, self.metrics.refits):  # without labels, they would show as 0
            self.metrics.registry.unregister(family)
        self.grpc: ListenAddress | None = None
        """The gRPC address, once the server listens."""

    @property
    def node(self) -> ServingNode | None:
        """The node of the first loaded model."""
        return next(iter(self._repository.nodes), None)

    @property
    def metrics_by_model(self) -> MetricsByModel:
        """The metrics of all models that were loaded, and its own, without a name."""
        return {**self._repository.metrics, (self.model.name, self.model.version): self.metrics}

    @property
    def is_draining(self) -> bool:
        return self._repository.is_draining
