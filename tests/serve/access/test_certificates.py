"""Certificates of nodes: who shows none is a client at most, and who shows one has its name."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pliant.errors import NodeError
from pliant.route.node_identity import Identity
from pliant.serve.access.access import AccessControl, AccessGrant, AccessRequest, Refusal
from pliant.serve.access.rates import ClientRates, Rate
from pliant.serve.access.security import AccessTokens, Tls, names_of
from tests.serve.access.certificates import Authority
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, asking, fixed, running
from tests.serve.test_routing import HONEST, LATE, route

CLIENT, PEER = "client-token-0123", "peer-token-0123456"
IDENTITY = Identity("upper", "0").headers()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def up(authority: Authority) -> Iterator[Running]:
    """A node that asks nodes below for certificates, and nobody for a peer token."""
    tls = authority.node("127.0.0.1", file="up", client_ca=authority.ca)
    with running(Upper(mark="@up"), name="up", tls=tls, tokens=(CLIENT,), **fixed(*HONEST)) as node:
        yield node


def asked(
    node: Running, tls: Tls, sender: str | None, token: str | None, ping: bool = False
) -> httpx.Response:
    """What a caller with such a certificate is answered that says it is the node `sender`."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    headers |= {} if sender is None else route(sender=sender) | IDENTITY
    with httpx.Client(verify=tls.client(), headers=headers, timeout=PATIENCE_S) as http:
        if ping:
            return http.get(f"{node.url}/v2/pliant/curve")
        return http.post(f"{node.url}/v2/models/upper/infer", content=asking("x"))


def test_only_who_shows_a_certificate_is_a_node(up: Running, authority: Authority) -> None:
    """A token is copied with a file; a client's token is enough to ask, and for no more."""
    shows, none = authority.node("below"), Tls(ca=authority.ca)
    assert asked(up, shows, "below", None).status_code == 200
    assert asked(up, shows, "below:8080", None, ping=True).status_code == 200
    assert asked(up, none, None, CLIENT).status_code == 200
    for ping in (False, True):
        refused = asked(up, none, "below", CLIENT, ping)
        assert refused.status_code == 403
        assert "--client-ca" in refused.json()["error"]
    assert asked(up, none, None, None).status_code == 401


def test_a_node_has_the_name_of_its_certificate(up: Running, authority: Authority) -> None:
    """It is told nothing in another's name, and takes nobody's place among those that are told."""
    shows = authority.node("below", "below.example.org")
    assert up.node is not None
    for name in ("other", "below.example", "belo", "other:8080"):
        refused = asked(up, shows, name, None)
        assert refused.status_code == 403
        assert "does not match its certificate" in refused.json()["error"]
        assert name not in up.node.router.predecessors.names
    assert asked(up, shows, "BELOW.example.org:1", None).status_code == 200


def test_a_certificate_of_another_authority_is_no_certificate(
    up: Running, authority: Authority, tmp_path: Path
) -> None:
    """The handshake ends there: nothing that such a caller sends is read."""
    forged = Authority(tmp_path / "forged").node("below")
    with pytest.raises((httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError)):
        asked(up, Tls(forged.cert, forged.key, authority.ca), "below", None)


def test_nodes_route_to_each_other_by_certificates_alone(up: Running, authority: Authority) -> None:
    """The one below shows its certificate as the one above asks for it."""
    tls = authority.node("127.0.0.1", "end", file="end")
    with running(Upper(mark="@end"), name="end", tls=tls, upstreams=(up.url,), **fixed(*LATE)) as end:
        context = Tls(ca=authority.ca).client()
        with httpx.Client(verify=context, timeout=PATIENCE_S) as http:
            for _ in range(1000):
                found = http.get(f"{end.url}/v2/pliant/route?length=1").json()
                if found["target"] == up.url:
                    break
            answer = http.post(f"{end.url}/v2/models/upper/infer", content=asking("x"))
        assert answer.json()["outputs"][0]["data"] == ["X@up"]
        assert up.node is not None
        assert "end" in up.node.router.predecessors.names


def shown(token: str | None, *names: str) -> AccessRequest:
    tokens = () if token is None else (f"Bearer {token}",)
    return AccessRequest("GET", "/v2/pliant/curve", tokens, True, names)


@pytest.mark.parametrize(
    ("tokens", "token", "names", "status"),
    [
        (AccessTokens([CLIENT]), None, ("a",), None),
        (AccessTokens([CLIENT]), CLIENT, ("a",), None),
        (AccessTokens([CLIENT]), CLIENT, (), 403),
        (AccessTokens([CLIENT]), None, (), 401),
        (AccessTokens([CLIENT], [PEER]), PEER, ("a",), None),
        (AccessTokens([CLIENT], [PEER]), PEER, (), 403),
        (AccessTokens([CLIENT], [PEER]), None, ("a",), 401),
        (AccessTokens([CLIENT], [PEER]), CLIENT, ("a",), 403),
        (AccessTokens(), None, ("a",), None),
        (AccessTokens(), None, (), 403),
    ],
)
def test_where_there_are_peer_tokens_a_node_needs_both(
    tokens: AccessTokens, token: str | None, names: tuple[str, ...], status: int | None
) -> None:
    """Certificates bind more tightly than tokens, and take nothing away from them."""
    found = AccessControl(tokens, asks_certificate=True).admit(shown(token, *names))
    assert (found.status if isinstance(found, Refusal) else None) == status


@pytest.mark.parametrize(
    ("names", "of_node", "status"), [((), True, 403), ((), False, None), (("a",), True, None)]
)
def test_a_node_without_tokens_takes_passed_on_requests_by_certificate_alone(
    names: tuple[str, ...], of_node: bool, status: int | None
) -> None:
    """Everybody may ask it, by the same path; only a node may say what a node says."""
    asked = AccessRequest("POST", "/v2/models/upper/infer", (), of_node, names)
    found = AccessControl(AccessTokens(), asks_certificate=True).admit(asked)
    assert (found.status if isinstance(found, Refusal) else None) == status


def test_a_stolen_peer_token_has_the_rate_of_a_client() -> None:
    """Only with a certificate, or where none is asked for, is it a node's."""
    for asks, names, status in ((True, (), 429), (True, ("a",), None), (False, (), None)):
        rates = ClientRates(Rate(1e-9, 1))
        access = AccessControl(AccessTokens([CLIENT], [PEER]), rates, asks_certificate=asks)
        asked = AccessRequest("POST", "/v2/models/upper/infer", (f"Bearer {PEER}",), names=names)
        assert isinstance(access.admit(asked), AccessGrant)
        found = access.admit(asked)
        assert (found.status if isinstance(found, Refusal) else None) == status


def test_without_client_ca_a_certificate_is_not_asked_for() -> None:
    """Nor does its name count."""
    access = AccessControl(AccessTokens([CLIENT], [PEER]))
    access.check_sender("anybody", ("a",))
    assert isinstance(access.admit(shown(None, "a")), Refusal)
    with pytest.raises(NodeError, match="--tls-cert"):
        Tls(client_ca=Path("ca.pem"))


def test_names_of_a_certificate() -> None:
    """As Python tells it: of whom it is, and for which hosts."""
    subject = ((("countryName", "CH"),), (("commonName", "a"),))
    names = (("DNS", "b"), ("IP Address", "10.0.0.1"), ("URI", "spiffe://x/y"), ("email", "z"))
    found = names_of({"subject": subject, "subjectAltName": names})
    assert found == ("a", "b", "10.0.0.1", "spiffe://x/y")
    assert names_of({}) == names_of(None) == ()
