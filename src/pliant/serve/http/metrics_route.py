"""`GET /metrics`: the metrics of all models of a process, in Prometheus' text format."""

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pliant.serve.answers.metrics import TEXT, MetricsByModel, text_by_model

METRICS_PATH = "/metrics"


def metrics_route(every: Callable[[], MetricsByModel]) -> Route:
    """The route; `every` returns the metrics at each scrape."""

    async def answer(request: Request) -> Response:
        return Response(text_by_model(every()), headers={"content-type": TEXT})

    return Route(METRICS_PATH, answer, methods=["GET"])
