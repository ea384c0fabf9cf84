"""Tokens are in no log, no answer, no metric, no trace and no message, whatever goes wrong."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pliant.errors import NodeError
from pliant.serve.access.credentials import TokenFiles
from pliant.serve.access.roles import RULES
from pliant.serve.access.security import AccessTokens, ListenAddress, read_tokens
from pliant.serve.http.limits import Limits
from pliant.serve.node.routing import Routing
from pliant.serve.node.start_node import NodeOptions
from pliant.serve.upstream.client import Client, checked_url
from tests.serve.access.test_roles import path_of
from tests.serve.liars import Liar
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, asking, fixed, running
from tests.serve.test_routing import LATE, route, until

CLIENT, PEER, OPERATOR, WRONG = (
    f"{word}-token-hush-0123" for word in ("client", "peer", "operator", "wrong")
)
SECRETS = (CLIENT, PEER, OPERATOR, WRONG)
STREAM = "/v2/pliant/events"


def test_no_token_is_in_any_output(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Of every route with every token, of failures above and below, of the log at its most talkative."""
    caplog.set_level(logging.DEBUG)
    said: list[str] = []
    file = tmp_path / "clients"
    file.touch(mode=0o600)
    file.write_text(f"{CLIENT}\n")
    tokens = {"tokens": (CLIENT,), "peer_tokens": (PEER,), "operator_tokens": (OPERATOR,)}
    with Liar(status=500, content=b"no") as liar, httpx.Client(timeout=PATIENCE_S) as http:
        options = {**tokens, **fixed(*LATE), "token_files": TokenFiles(file)}
        with running(Upper(), name="end", upstreams=(liar.url, "http://127.0.0.1:9"), **options) as node:
            for rule in RULES:
                for token in SECRETS:
                    if rule.path == STREAM and token == OPERATOR:
                        continue  # it does not end; its events are those of the node's pictures
                    headers = {"authorization": f"Bearer {token}", **route(sender="x", address=liar.url)}
                    for more in (headers, {"authorization": f"Bearer {token}"}):
                        path = path_of(rule.path)
                        answer = http.request(
                            rule.method, node.url + path, headers=more, content=asking("bug")
                        )
                        said.append(f"{answer.headers}{answer.text}")
            until(lambda: liar.n_asked > 0)
            assert f"Bearer {PEER}" in liar.shown, "the upstream is shown the token, and nobody else"
            file.write_text(f"{OPERATOR}\n{WRONG} {WRONG}\n")
            until(lambda: "were not reloaded" in caplog.text)
    out = capfd.readouterr()
    for where, text in (("log", caplog.text), ("answers", "".join(said)), ("output", out.out + out.err)):
        assert not [token for token in SECRETS if token in text], where
    assert len(said) > 100


@pytest.mark.parametrize(
    "fails",
    [
        lambda path: AccessTokens([CLIENT], [CLIENT]),
        lambda path: read_tokens(written(path, f"{CLIENT} {PEER}")),
        lambda path: read_tokens(written(path, f"{CLIENT}\n{'x' * 3}")),
        lambda path: checked_url(f"http://user:{CLIENT}@host:80"),
        lambda path: checked_url(f"http://{CLIENT}@host:80/path"),
        lambda path: NodeOptions(tokens=(CLIENT,), upstreams=(f"http://{CLIENT}:{PEER}@host",)),
    ],
)
def test_no_message_has_a_token(tmp_path: Path, fails: Callable[[Path], object]) -> None:
    """Messages are copied into tickets."""
    with pytest.raises(NodeError) as raised:
        fails(tmp_path / "t")
    assert not [token for token in SECRETS if token in str(raised.value)]


def written(path: Path, text: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    return path


def test_no_options_show_a_token() -> None:
    """They are printed by debuggers and by frameworks that report errors."""
    tokens = AccessTokens([CLIENT], [PEER], [OPERATOR])
    options = NodeOptions(
        listen=ListenAddress("127.0.0.1", 0),
        tokens=(CLIENT,),
        peer_tokens=(PEER,),
        operator_tokens=(OPERATOR,),
    )
    shown = f"{options!r} {tokens!r} {tokens.find(f'Bearer {PEER}')!r} {Routing(token=PEER)!r}"
    assert not [token for token in SECRETS if token in shown]


def test_a_token_over_plain_http_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """For each place, before the first is sent; neither within this machine nor over TLS."""

    async def call(url: str, token: str | None) -> None:
        async with Client(ssl.create_default_context(), Limits()) as client:
            for _ in range(2):
                with pytest.raises(NodeError):
                    await client.call("GET", f"{url}/v2", {}, b"", 0.01, token)

    for url, token, n in (
        ("http://192.0.2.1:9", PEER, 1),
        ("http://192.0.2.1:9", None, 0),
        ("https://192.0.2.1:9", PEER, 0),
        ("http://127.0.0.1:9", PEER, 0),
        ("http://[::1]:9", PEER, 0),
        ("http://localhost:9", PEER, 0),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pliant.serve"):
            asyncio.run(call(url, token))
        warned = [record for record in caplog.records if "plain HTTP" in record.getMessage()]
        assert len(warned) == n, url
        assert PEER not in caplog.text
