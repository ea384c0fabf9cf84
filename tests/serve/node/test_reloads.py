"""SIGHUP: what is read again, how often, and what the log tells of it."""

import asyncio
import logging
import os
import shutil
import signal
import ssl
from pathlib import Path

import pytest

from pliant.serve.access.credentials import Credentials, TokenFiles
from pliant.serve.access.security import AccessTokens, Tls
from pliant.serve.node.reloads import Reloads
from tests.serve.access.certificates import Authority
from tests.serve.access.test_credentials import NEW, OLD, written
from tests.serve.nodes import PATIENCE_S


def test_signals_during_a_reload_cause_one_more(caplog: pytest.LogCaptureFixture) -> None:
    """Each was queued and ran on its own; nothing was logged until the first had ended."""
    begun: list[int] = []

    async def work() -> None:
        reloads, gate, started = Reloads(), asyncio.Event(), asyncio.Event()

        async def action() -> None:
            begun.append(len(begun))
            started.set()
            await gate.wait()

        reloads.add(action)
        with reloads.on_hangup():
            os.kill(os.getpid(), signal.SIGHUP)
            await started.wait()
            assert [record.message for record in caplog.records if "SIGHUP" in record.message]
            for _ in range(5):
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.sleep(0)
            gate.set()
            await asyncio.sleep(0.05)
            await reloads.run()

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # what nohup has the suite ignore
    with caplog.at_level(logging.WARNING, "pliant.serve"):
        asyncio.run(work())
    signal.signal(signal.SIGHUP, before)
    assert len(begun) == 3  # the first, one for the other five, and that of the test itself


def test_credentials_that_did_not_change_are_not_said_to_be_reloaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a refused file the log said that tokens and certificates were reloaded."""
    path = written(tmp_path / "tokens", OLD)
    credentials = Credentials(AccessTokens([OLD]), TokenFiles(path), Tls())

    def reloaded() -> list[str]:
        caplog.clear()
        asyncio.run(credentials.reload())
        return [record.message for record in caplog.records]

    with caplog.at_level(logging.WARNING, "pliant.serve"):
        assert reloaded() == []
        written(path, NEW)
        assert reloaded() == ["tokens and certificates were reloaded"]
        assert credentials.tokens.kinds[0] == (NEW,)
        assert reloaded() == []


def test_sighup_reads_the_authorities_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --ca no file of the node changes when they do."""
    bundle = tmp_path / "system.pem"
    shutil.copy(Authority(tmp_path / "first").ca, bundle)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    credentials = Credentials(AccessTokens(), TokenFiles(), Tls())
    second = Authority(tmp_path / "second").ca
    shutil.copy(second, bundle)
    asyncio.run(credentials.reload())
    known = ssl.create_default_context(cafile=second).get_ca_certs()
    assert known[0] in credentials.client_tls.get_ca_certs()


def test_a_deleted_token_file_is_one_error_of_a_reload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The watcher repeated what SIGHUP had said."""
    monkeypatch.setattr("pliant.serve.access.credentials.POLL_S", 0.005)
    path = written(tmp_path / "tokens", OLD)

    async def work() -> None:
        credentials = Credentials(AccessTokens([OLD]), TokenFiles(path), Tls())
        watching = asyncio.create_task(credentials.watch())
        path.unlink()
        await credentials.reload()
        await asyncio.sleep(0.1)
        assert len(caplog.records) == 1
        written(path, NEW)
        while credentials.tokens.kinds[0] != (NEW,):
            await asyncio.sleep(0.005)
        watching.cancel()

    with caplog.at_level(logging.ERROR, "pliant.serve"):
        asyncio.run(asyncio.wait_for(work(), PATIENCE_S))
