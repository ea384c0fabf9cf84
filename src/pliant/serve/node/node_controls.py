"""Controls that change a running node: its models, limits, and reloads on SIGHUP."""

from dataclasses import dataclass
from typing import final

from pliant.serve.access.access import AccessControl
from pliant.serve.access.rates import ClientRates
from pliant.serve.answers.admission import Admission
from pliant.serve.node.reloads import Reloads
from pliant.serve.repository.model_repository import ModelRepository


@final
@dataclass(slots=True)
class NodeControls:
    """The controls of one node, on its event loop. `queue` applies to each endpoint, also of later models."""

    repository: ModelRepository
    reloads: Reloads
    access: AccessControl
    admission: Admission
    queue: int

    def limit(self, queue: int, rates: ClientRates) -> None:
        """Change the queue limit and the rate limits of a client.

        Requests that already wait stay, even beyond a shorter queue; recent use still counts against the
        rates.
        """
        self.queue = queue
        self.admission.queue = queue
        self.access.replace_rates(rates)
        for node in self.repository.nodes:
            node.limit_queue(queue)
