"""Who may call what over gRPC: the same table, rates and certificates as over HTTP."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pliant.serve.access.rates import ClientRates, Rate
from pliant.serve.access.roles import EVERYBODY, GRPC, RULES, Role, RouteRule
from tests.serve.access.certificates import Authority
from tests.serve.access.test_roles import NODE_TOKENS, TOKENS
from tests.serve.models import Upper
from tests.serve.nodes import ANY_PORT, PATIENCE_S, Running, running
from tests.serve.test_routing import until

grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
METHODS = [rule for rule in RULES if rule.path.startswith(GRPC)]
REFUSED = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED"}


@pytest.fixture(scope="module")
def node() -> Iterator[Running]:
    with running(Upper(), grpc=ANY_PORT, **NODE_TOKENS) as found:
        yield found


def called(channel: Any, path: str, *metadata: tuple[str, str]) -> tuple[str, dict[str, str]]:
    """The code of a call with an empty message, and what came behind it."""
    try:
        channel.unary_unary(path)(b"", timeout=PATIENCE_S, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name, dict(error.trailing_metadata() or ())
    return "OK", {}


def at(node: Running) -> str:
    assert node.node is not None
    return str(node.grpc)


@pytest.mark.parametrize("rule", METHODS, ids=lambda rule: rule.path.rpartition("/")[2])
def test_every_method_is_for_the_roles_of_its_rule(node: Running, rule: RouteRule) -> None:
    """As routes are."""
    with grpc.insecure_channel(at(node)) as channel:
        for role, token in ((None, None), (None, "neither-0123456789"), *TOKENS.items()):
            shown = [] if token is None else [("authorization", f"Bearer {token}")]
            code, _ = called(channel, rule.path, *shown)
            if rule.roles == EVERYBODY or role in rule.roles:
                assert code not in REFUSED.values(), (role, code)
            else:
                assert code == REFUSED[403 if role else 401]


def test_two_tokens_are_none_and_what_is_no_method_is_not_served(node: Running) -> None:
    """Metadata may have a name twice, and a path may be spelt otherwise."""
    twice = [("authorization", f"Bearer {TOKENS[role]}") for role in (Role.CLIENT, Role.OPERATOR)]
    with grpc.insecure_channel(at(node)) as channel:
        assert called(channel, f"{GRPC}/ServerMetadata", *twice)[0] == "UNAUTHENTICATED"
        for path in (f"/{GRPC}/ServerMetadata", f"{GRPC}/servermetadata", f"{GRPC}/ServerMetadata/", "/v2"):
            assert called(channel, path)[0] == "UNIMPLEMENTED", path


def test_a_client_that_calls_too_often_is_told_when_to_come_again() -> None:
    """With gRPC's own word for it; health is never limited."""
    rates = ClientRates(requests=Rate(1e-3, 2))
    with running(Upper(), grpc=ANY_PORT, rates=rates) as node, grpc.insecure_channel(at(node)) as channel:
        codes = [called(channel, f"{GRPC}/ServerMetadata") for _ in range(3)]
        assert [code for code, _ in codes] == ["OK", "OK", "RESOURCE_EXHAUSTED"]
        assert 900_000 <= int(codes[-1][1]["grpc-retry-pushback-ms"]) <= 1_000_000
        assert all(called(channel, f"{GRPC}/ServerReady")[0] == "OK" for _ in range(9))


def test_a_certificate_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As over HTTP: the next connection gets the new one."""
    monkeypatch.setattr("pliant.serve.access.credentials.POLL_S", 0.02)
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    tls = first.node("127.0.0.1")

    def is_trusted(node: Running, authority: Authority) -> bool:
        trust = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        with grpc.secure_channel(at(node), trust, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            return called(channel, f"{GRPC}/ServerLive")[0] == "OK"

    with running(Upper(), grpc=ANY_PORT, tls=tls) as node:
        assert is_trusted(node, first)
        cert, key = second.issue("127.0.0.1")
        assert tls.cert is not None
        assert tls.key is not None
        os.replace(cert, tls.cert)
        os.replace(key, tls.key)
        until(lambda: is_trusted(node, second))
        assert not is_trusted(node, first)
