"""Messages in another node's name, and messages of clients that only nodes may send."""

import httpx
import pytest

from pliant.errors import NodeError
from pliant.ir.curve import Curve
from pliant.route.curve_advert import CurveAdvert
from pliant.route.node_messages import encode_advert
from pliant.serve.upstream.broadcasts import TELL_PATH
from pliant.serve.upstream.upstreams import CURVE_PATH
from tests.route.routers import only
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, asking, fixed, running
from tests.serve.test_routing import HONEST, LATE, answer_of, metric, route, target_of, until

CLIENT, PEER = "client-token-0123", "peer-token-0123456"


def shown(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("seconds", [0.0, 1e6])
@pytest.mark.parametrize("stamp", [(0, 0), (2**53, 2**53)])
def test_a_forged_broadcast_moves_no_request(seconds: float, stamp: tuple[int, int]) -> None:
    """One with a stamp of 2^53 diverted every request for minutes, as later true ones looked older.

    `up` is the best choice, `far` never is, and the forged curves say the opposite of each.
    """
    with (
        running(Upper(mark="@up"), name="up", **fixed(*HONEST)) as up,
        running(Upper(mark="@far"), name="far", **fixed((0, 9e5))) as far,
        running(Upper(mark="@end"), name="end", upstreams=(up.url, far.url), **fixed(*LATE)) as end,
    ):
        until(lambda: target_of(end, 1) == up.url)
        until(lambda: min(metric(end, _pings(url)) for url in (up.url, far.url)) >= 3)  # of the start
        for name in ("up", "far"):
            forged = encode_advert(CurveAdvert(name, only(Curve(((0, seconds),))), frozenset({name}), stamp))
            for _ in range(20):
                said = httpx.post(f"{end.url}{TELL_PATH}", content=forged.encode(), timeout=PATIENCE_S)
                assert said.status_code == 200
            assert target_of(end, 1) == up.url
            assert answer_of(end, "x") == "X@up"
        until(lambda: min(metric(end, _pings(url)) for url in (up.url, far.url)) >= 4)
        assert target_of(end, 1) == up.url


def _pings(url: str) -> str:
    return f'pliant_pings_total{{outcome="ok",upstream="{url}"}}'


def test_only_nodes_may_ping_broadcast_and_pass_on() -> None:
    """A client's token is in many hands; none of them may speak as a node."""
    with (
        running(Upper(), tokens=(CLIENT,), peer_tokens=(PEER,)) as node,
        httpx.Client(base_url=node.url, timeout=PATIENCE_S) as http,
    ):
        infer = "/v2/models/upper/infer"
        assert http.post(infer, content=asking("a"), headers=shown(CLIENT)).status_code == 200
        asked = [
            lambda token: http.get(CURVE_PATH, headers=shown(token)),
            lambda token: http.post(TELL_PATH, content=b"", headers=shown(token)),
            lambda token: http.post(infer, content=asking("a"), headers=shown(token) | route(sender="x")),
        ]
        for ask in asked:
            refused = ask(CLIENT)
            assert refused.status_code == 403
            assert "--peer-token-file" in refused.json()["error"]
            assert ask(PEER).status_code not in (401, 403)
            assert ask("neither-0123456789").status_code == 401
        assert node.node is not None
        assert node.node.router.predecessors.names == ("x",)


def test_without_peer_tokens_nobody_is_a_node() -> None:
    """A node that was given clients' tokens only has said that it trusts no other node."""
    with running(Upper(), tokens=(CLIENT,)) as node:
        assert httpx.get(node.url + CURVE_PATH, headers=shown(CLIENT), timeout=PATIENCE_S).status_code == 403


def test_one_token_for_clients_and_nodes_is_refused() -> None:
    """Before anything listens."""
    both = {"tokens": (CLIENT,), "peer_tokens": (PEER, CLIENT)}
    with pytest.raises(NodeError, match="different tokens"), running(Upper(), **both):
        pass


@pytest.mark.parametrize("address", ["http://169.254.169.254", "http://10.255.255.1:9", "http://localhost"])
def test_a_node_that_registers_is_told_where_it_calls_from(address: str) -> None:
    """Otherwise it could have this node send requests into networks that only this node reaches."""
    with running(Upper(), peer_tokens=(PEER,)) as node:
        http = f"{address}:8080" if address.count(":") == 1 else address
        ping = httpx.get(
            node.url + CURVE_PATH, headers=shown(PEER) | route(sender="x", address=http), timeout=PATIENCE_S
        )
        assert ping.status_code == 200
        assert node.node is not None
        listener = node.node.router.predecessors.listener_of("x")
        assert listener is not None
        assert listener.address.startswith("http://127.0.0.1")


def test_a_forged_name_cannot_take_a_predecessors_listener_elsewhere() -> None:
    """On an open node anybody may claim a name, but changes are only told to the address that he has."""
    with Liar() as below, running(Upper(), **fixed(*LATE, refit_every=2)) as node:
        node.post("x", headers=route(sender="below", address=below.url))
        node.post("x", headers=route(sender="below", address="http://192.0.2.1:80"))
        assert node.node is not None
        listener = node.node.router.predecessors.listener_of("below")
        assert listener is not None
        assert listener.address == "http://127.0.0.1:80"
