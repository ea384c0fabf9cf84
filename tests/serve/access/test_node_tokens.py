"""Tokens that nodes show each other."""

from typing import Any

import httpx

from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, fixed, running
from tests.serve.test_routing import HONEST, LATE, answer_of, metric, until

TOKEN = "0123456789abcdef"
OPERATOR = "fedcba9876543210"


def test_nodes_show_each_other_the_token() -> None:
    """Requests, pings and broadcasts alike; without it nothing is passed on."""
    with running(Upper(mark="@up"), name="up", peer_tokens=(TOKEN,), **fixed(*HONEST)) as up:
        options = {"name": "end", "upstreams": (up.url,), **fixed(*LATE)}
        tokens: dict[str, Any] = {"peer_tokens": (TOKEN,), "operator_tokens": (OPERATOR,)}
        with running(Upper(mark="@end"), **tokens, **options) as end:
            good = {"authorization": f"Bearer {TOKEN}"}
            asks = {"authorization": f"Bearer {OPERATOR}"}
            explain = f"{end.url}/v2/pliant/route?length=50"
            until(lambda: httpx.get(explain, headers=asks, timeout=PATIENCE_S).json()["target"] == up.url)
            assert end.post("x", headers=good).json()["outputs"][0]["data"] == ["X@up"]
            assert end.post("x").status_code == 401
        with running(Upper(mark="@end"), **options) as end:
            failed = f'pliant_pings_total{{outcome="failed",upstream="{up.url}"}}'
            until(lambda: metric(end, failed) >= 1)
            assert answer_of(end, "x") == "X@end"
