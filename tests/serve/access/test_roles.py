"""Who may call what: the table, and that a node over HTTP does as it says."""

from collections.abc import Iterator

import httpx
import pytest

from pliant.serve.access.roles import (
    ANY,
    EVERYBODY,
    OPERATORS,
    PEERS,
    RULES,
    Role,
    routes_without_rule,
    rule_for,
)
from pliant.serve.upstream.request_explanation import EXPLAIN_PATH
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, running
from tests.serve.test_routing import route

TOKENS = {
    Role.CLIENT: "client-token-0123",
    Role.PEER: "peer-token-0123456",
    Role.OPERATOR: "operator-token-0123",
}
NODE_TOKENS = {
    "tokens": (TOKENS[Role.CLIENT],),
    "peer_tokens": (TOKENS[Role.PEER],),
    "operator_tokens": (TOKENS[Role.OPERATOR],),
}
"""Options of a node that has a token of every role."""
NO = (401, 403)


def bearing(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    """One that has tokens of every role."""
    with running(Upper(), **NODE_TOKENS) as found:
        yield found


@pytest.fixture(scope="module")
def http(node: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=node.url, timeout=PATIENCE_S) as client:
        yield client


def path_of(pattern: str) -> str:
    """A path that the pattern of a rule stands for, at a node with the model `upper`."""
    names = {"{model}": "upper", "{version}": "1"}
    return "/".join(names.get(segment, segment) for segment in pattern.split("/"))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.method} {rule.path}")
def test_every_route_is_for_the_roles_of_its_rule(http: httpx.Client, rule: object) -> None:
    """401 without a token, 403 with one of another role, and neither with one of its own."""
    assert rule in RULES
    method, path = rule.method, path_of(rule.path)  # type: ignore[attr-defined]
    roles = rule.roles  # type: ignore[attr-defined]
    for role, token in ((None, None), (None, "neither-0123456789"), *TOKENS.items()):
        with http.stream(method, path, headers=bearing(token), content=b"{") as answer:  # events never end
            status = answer.status_code
        if roles == EVERYBODY or role in roles:
            assert status not in NO, (role, status)
        else:
            assert status == (401 if role is None else 403), (role, status)


def test_a_route_of_nodes_is_so_by_its_header_too(http: httpx.Client) -> None:
    """Passing a request on is the same path as asking."""
    for role, token in TOKENS.items():
        headers = bearing(token) | route(sender="x")
        status = http.post("/v2/models/upper/infer", content=asking("a"), headers=headers).status_code
        assert (status == 200) is (role is Role.PEER)


@pytest.mark.parametrize(
    "path",
    [
        "/v2/pliant/peers/",
        "//v2/pliant/peers",
        "/v2/pliant//peers",
        "/v2/./pliant/peers",
        "/v2/models/../pliant/peers",
        "/v2/PLIANT/peers",
        "/v2/pliant%2Fpeers",
        "/v2%2Fpliant%2Fpeers",
        "/v2/pliant/%70eers",
        "/v2/pliant/peers;x",
        "/v2/pliant/peers%00",
        "/v2/pliant/peers%20",
        "/v2/health/live/../../pliant/peers",
        "/v2/health/live%2F..%2F..%2Fpliant%2Fpeers",
        "/v2/pliant/peers?/v2/health/live",
    ],
)
def test_no_spelling_of_a_path_is_a_way_around_its_role(node: Running, path: str) -> None:
    """The guard and the router read the same path: what the one does not know, the other does not answer."""
    for token in (None, TOKENS[Role.CLIENT], TOKENS[Role.PEER]):
        request = httpx.Request("GET", node.url, headers=bearing(token), extensions={"target": path.encode()})
        with httpx.Client(timeout=PATIENCE_S) as client:
            assert client.send(request).status_code in (*NO, 404)


def test_two_tokens_are_none(node: Running) -> None:
    """A proxy that adds its own would else lend its role to everybody."""
    twice = [("authorization", f"Bearer {TOKENS[role]}") for role in (Role.CLIENT, Role.OPERATOR)]
    assert httpx.get(f"{node.url}/v2", headers=twice, timeout=PATIENCE_S).status_code == 401


def test_what_operators_may_read_everybody_may_where_there_are_no_tokens() -> None:
    """`pliant route explain` works on a node at loopback; once an operator has a token, it is asked for."""
    with running(Upper()) as node:
        assert httpx.get(f"{node.url}{EXPLAIN_PATH}?length=3", timeout=PATIENCE_S).status_code == 200
    with running(Upper(), operator_tokens=(TOKENS[Role.OPERATOR],)) as node:
        for token, status in ((None, 403), (TOKENS[Role.OPERATOR], 200)):
            url = f"{node.url}{EXPLAIN_PATH}?length=3"
            assert httpx.get(url, headers=bearing(token), timeout=PATIENCE_S).status_code == status
        assert node.post("a").status_code == 200


def test_what_changes_a_node_asks_for_an_operator_everywhere() -> None:
    """A page in a browser can post to a node at loopback."""
    guarded = [rule for rule in RULES if rule.is_guarded]
    assert guarded
    with running(Upper()) as node:
        for rule in guarded:
            url = f"{node.url}{path_of(rule.path)}"
            answer = httpx.request(rule.method, url, content=b"{}", timeout=PATIENCE_S)
            assert answer.status_code in NO


def test_a_route_without_a_rule_is_named() -> None:
    """An application with one does not start."""
    assert routes_without_rule([("GET", "/v2"), ("PUT", "/v2"), ("GET", "/v3")]) == ["PUT /v2", "GET /v3"]
    assert routes_without_rule((rule.method, rule.path) for rule in RULES) == []


def test_the_first_rule_that_fits_counts() -> None:
    """A method that there is not gets the role of the path, so that nobody learns more than he may."""
    assert rule_for("GET", "/v2/pliant/tell").roles == PEERS
    assert rule_for("HEAD", "/v2/pliant/route").roles == OPERATORS
    assert rule_for("GET", "/v2/models/any.name/infer").roles == ANY
    assert rule_for("GET", "/v2/models//infer").path == ""
    assert rule_for("GET", "/nowhere").roles == ANY
    assert len({(rule.method, rule.path) for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("query", ["a=1&" * 40, "model=" * 40, "model=%FF%00", "&" * 500, "model=other"])
def test_no_query_breaks_the_node(http: httpx.Client, query: str) -> None:
    """It is read before the token is looked at, to find the model: a stranger had 500 from it."""
    for path in ("/v2", "/metrics", EXPLAIN_PATH, "/v2/health/live", "/nowhere", "/v2/repository/index"):
        for token in (None, *TOKENS.values()):
            assert http.get(f"{path}?{query}", headers=bearing(token)).status_code < 500
