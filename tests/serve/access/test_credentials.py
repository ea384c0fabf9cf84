"""Tokens and certificates that are replaced while a node runs."""

import asyncio
import logging
import os
import signal
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pliant.errors import NodeError
from pliant.serve.access.access import AccessControl, AccessGrant, AccessRequest
from pliant.serve.access.credentials import Credentials, TokenFiles
from pliant.serve.access.roles import Role
from pliant.serve.access.security import AccessTokens, Tls, read_tokens
from pliant.serve.node.reloads import Reloads
from tests.serve.access.certificates import Authority
from tests.serve.models import Upper
from tests.serve.nodes import PATIENCE_S, Running, fixed, running
from tests.serve.test_routing import HONEST, LATE, target_of, until

OLD, NEW, PEER, OPERATOR = (f"{word}-token-0123456" for word in ("old", "new", "peer", "operator"))


def written(path: Path, *tokens: str) -> Path:
    path.touch(mode=0o600)
    path.write_text("\n".join(tokens) + "\n")
    return path


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pliant.serve.access.credentials.POLL_S", 0.02)


def status(node: Running, token: str, path: str = "/v2") -> int:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{node.url}{path}", headers=headers, timeout=PATIENCE_S).status_code


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Running]:
    clients, operators = written(tmp_path / "c", OLD), written(tmp_path / "o", OPERATOR)
    files = TokenFiles(clients, None, operators)
    given = {"tokens": (OLD,), "peer_tokens": (PEER,), "operator_tokens": (OPERATOR,)}
    with running(Upper(), token_files=files, **given) as found:
        yield found


def test_tokens_are_replaced_when_their_file_changes(node: Running, tmp_path: Path) -> None:
    """A token that leaked is shut out without a restart; first both hold, so that clients can change over."""
    written(tmp_path / "c", NEW, OLD)
    until(lambda: status(node, NEW) == 200)
    assert status(node, OLD) == 200
    written(tmp_path / "c", NEW)
    until(lambda: status(node, OLD) == 401)
    assert status(node, NEW) == 200
    assert status(node, PEER, "/v2/pliant/curve") == 200, "tokens without a file stay"


def test_files_are_watched_again_after_a_look_failed(
    node: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread could be started for a moment, and renewed tokens were not read any more."""
    begin, failures = asyncio.to_thread, [RuntimeError("can't start new thread")]

    def flawed(look: Callable[..., Any], *given: Any) -> Coroutine[Any, Any, Any]:
        if look.__name__ == "_stamps" and failures:
            raise failures.pop()
        return begin(look, *given)

    monkeypatch.setattr(asyncio, "to_thread", flawed)
    until(lambda: not failures)
    written(tmp_path / "c", NEW)
    until(lambda: status(node, NEW) == 200)


def test_a_link_that_leads_elsewhere_is_a_change(tmp_path: Path) -> None:
    """Kubernetes replaces a secret so."""
    for name, token in (("first", OLD), ("second", NEW)):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "c", token)
    link = tmp_path / "now"
    link.symlink_to(tmp_path / "first")
    with running(Upper(), tokens=(OLD,), token_files=TokenFiles(link / "c")) as node:
        assert status(node, OLD) == 200
        (tmp_path / "next").symlink_to(tmp_path / "second")
        os.replace(tmp_path / "next", link)
        until(lambda: status(node, NEW) == 200)
        assert status(node, OLD) == 401


@pytest.mark.parametrize("broken", ["", "short\n", OPERATOR, "mode", "gone"])
def test_a_broken_file_keeps_what_was_read_before(
    node: Running, tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And the log says what is wrong with it, without a token."""
    with caplog.at_level(logging.ERROR, "pliant.serve"):
        if broken == "mode":
            (tmp_path / "c").chmod(0o644)
        elif broken == "gone":
            (tmp_path / "c").unlink()
        else:
            (tmp_path / "c").write_text(broken)
        until(lambda: "were not reloaded" in caplog.text)
    assert status(node, OLD) == 200
    assert status(node, OPERATOR, "/v2/pliant/peers") == 200
    assert not any(token in caplog.text for token in (OLD, OPERATOR, PEER))
    (tmp_path / "c").unlink(missing_ok=True)
    written(tmp_path / "c", NEW)
    until(lambda: status(node, NEW) == 200)


def test_upstreams_are_shown_the_new_token(tmp_path: Path) -> None:
    """Of two nodes that change over one after the other, none is without the other for long."""
    above, below = written(tmp_path / "up", OLD, NEW), written(tmp_path / "end", OLD)
    with running(
        Upper(mark="@up"), peer_tokens=(OLD, NEW), token_files=TokenFiles(None, above), **fixed(*HONEST)
    ) as up:
        options = {**fixed(*LATE), "token_files": TokenFiles(None, below), "tokens": (OPERATOR + "x",)}
        with running(
            Upper(mark="@end"),
            peer_tokens=(OLD,),
            operator_tokens=(OPERATOR,),
            upstreams=(up.url,),
            **options,
        ) as end:
            until(lambda: target_of(end, 1) == up.url)
            written(below, NEW)
            until(lambda: status(end, OLD) == 401)
            written(above, NEW)
            until(lambda: status(up, OLD) == 401)
            headers = {"authorization": f"Bearer {NEW}"}
            for _ in range(3):
                assert answer_of_with(end, headers) == "X@up"


def answer_of_with(node: Running, headers: dict[str, str]) -> str:
    found = node.post("x", headers=headers)
    assert found.status_code == 200, found.text
    word: str = found.json()["outputs"][0]["data"][0]
    return word


def test_a_certificate_is_replaced_and_connections_with_the_old_one_end(tmp_path: Path) -> None:
    """A certificate is renewed every few weeks; a kept connection goes on for one request."""
    first, second = Authority(tmp_path / "first"), Authority(tmp_path / "second")
    tls = first.node("127.0.0.1")
    with (
        running(Upper(), tls=tls) as node,
        httpx.Client(verify=trusting(first.ca), timeout=PATIENCE_S) as kept,
    ):
        assert kept.get(f"{node.url}/v2").headers.get("connection") is None
        cert, key = second.issue("127.0.0.1")
        assert tls.cert is not None
        assert tls.key is not None
        os.replace(cert, tls.cert)
        os.replace(key, tls.key)
        until(lambda: is_trusted(node, second.ca))
        assert not is_trusted(node, first.ca)
        assert kept.get(f"{node.url}/v2").headers["connection"] == "close"


def trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def is_trusted(node: Running, ca: Path) -> bool:
    try:
        return httpx.get(f"{node.url}/v2/health/live", verify=trusting(ca), timeout=PATIENCE_S).is_success
    except httpx.ConnectError:
        return False


def test_a_certificate_without_its_key_changes_nothing(tmp_path: Path) -> None:
    """The two files are not replaced at once."""
    authority = Authority(tmp_path / "a")
    tls = authority.node("127.0.0.1")
    credentials = Credentials(AccessTokens(), TokenFiles(), tls)
    before = (credentials.server_tls, credentials.client_tls)
    other, _ = authority.issue("127.0.0.1", file="other")
    assert tls.cert is not None
    os.replace(other, tls.cert)
    asyncio.run(credentials.reload())
    assert (credentials.server_tls, credentials.client_tls) == before


def test_sighup_reads_anew_in_order_and_one_after_the_other() -> None:
    """What models need of tokens is there before they are opened."""
    said: list[str] = []

    async def act(name: str) -> None:
        said.append(f"{name} begins")
        await asyncio.sleep(0)
        said.append(f"{name} ends")

    async def serve() -> None:
        reloads = Reloads()
        reloads.add(lambda: act("tokens"))
        reloads.add(lambda: act("models"))
        with reloads.on_hangup():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0)
            while len(said) < 4:
                await asyncio.sleep(0)
            await reloads.run()

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what nohup has the suite ignore
    asyncio.run(serve())
    assert said[:4] == ["tokens begins", "tokens ends", "models begins", "models ends"]
    assert len(said) % 4 == 0
    assert signal.signal(signal.SIGHUP, before) == signal.SIG_DFL


def test_files_that_were_replaced_during_a_read_are_not_read_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file changes, and SIGHUP names another one before the changed one is read."""
    old, new = written(tmp_path / "old", OLD), written(tmp_path / "new", NEW)
    begun, gate, read = threading.Event(), threading.Event(), TokenFiles.read

    def slowly(files: TokenFiles, known: AccessTokens) -> AccessTokens:
        found = read(files, known)
        if files.clients == old:
            begun.set()
            assert gate.wait(PATIENCE_S)
        return found

    async def replace_files() -> None:
        changed = asyncio.create_task(credentials.reload())
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        credentials.use(await credentials.read(TokenFiles(new), Tls()))
        gate.set()
        await changed

    credentials = Credentials(AccessTokens(read_tokens(old)), TokenFiles(old), Tls())
    monkeypatch.setattr(TokenFiles, "read", slowly)
    asyncio.run(replace_files())
    assert (credentials.files.clients, credentials.tokens.kinds[0]) == (new, (NEW,))


def test_tokens_that_are_accepted_hold_at_once() -> None:
    """Also on connections that are open: a token is looked at for each request."""
    access = AccessControl(AccessTokens([OLD]))
    shown = AccessRequest("GET", "/v2", (f"Bearer {OLD}",))
    assert isinstance(access.admit(shown), AccessGrant)
    access.replace_tokens(AccessTokens([NEW], [PEER]))
    assert not isinstance(access.admit(shown), AccessGrant)
    assert access.tokens.has(Role.PEER)


def test_files_are_read_by_role(tmp_path: Path) -> None:
    """Of a role without a file, the tokens are as they were given."""
    files = TokenFiles(None, written(tmp_path / "p", NEW))
    assert files.read(AccessTokens([OLD], [PEER], [OPERATOR])).kinds == ((OLD,), (NEW,), (OPERATOR,))
    with pytest.raises(NodeError, match="two roles"):
        files.read(AccessTokens([NEW]))
    assert read_tokens(tmp_path / "p") == (NEW,)
