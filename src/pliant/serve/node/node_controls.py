"""What may change of a node while it runs: its models, its limits, and what is done on SIGHUP."""

from dataclasses import dataclass
from typing import final

from pliant.serve.access.access import Access
from pliant.serve.access.rates import ClientRates
from pliant.serve.answers.admission import Admission
from pliant.serve.node.reloads import Reloads
from pliant.serve.repository.model_repository import ModelRepository


@final
@dataclass(slots=True)
class NodeControls:
    """Of one node, on its event loop. `queue` requests may wait for each endpoint, also of models to come."""

    repository: ModelRepository
    reloads: Reloads
    access: Access
    admission: Admission
    queue: int

    def limit(self, queue: int, rates: ClientRates) -> None:
        """From now on as many requests may wait, and one client asks at most at `rates`.

        Those that wait already stay, also beyond a shorter queue; what clients have taken lately counts on.
        """
        self.queue = queue
        self.admission.queue = queue
        self.access.limit(rates)
        for node in self.repository.nodes:
            node.allow(queue)
