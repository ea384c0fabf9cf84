"""A hub id leads to a directory, or to an error that says what to do; never to a long wait."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pliant.errors import ModelError
from pliant.models.hf.hub import ANSWER_TIMEOUT_S, download_model


def test_without_huggingface_hub_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelError, match=r"pliant\[hub\]"):
        download_model("owner/no-such-model")


SHA = "abc"


def fake_hub(
    monkeypatch: pytest.MonkeyPatch, *, online: bool, cached: Path | None, refs: set[str] | None = None
) -> list[dict[str, Any]]:
    """A huggingface_hub of one model; returns the calls it gets.

    As in the library, a download records its revision in `refs` unless that is the commit itself, and
    without the hub a revision that is no commit is looked up there. By default, `main` is recorded.
    """
    calls: list[dict[str, Any]] = []
    refs = {"main"} if refs is None else refs

    def model_info(name: str, timeout: float) -> SimpleNamespace:
        calls.append({"name": name, "timeout": timeout})
        if not online:
            raise RuntimeError("Name or service not known\nmore lines")
        return SimpleNamespace(sha=SHA)

    def snapshot_download(name: str, **options: Any) -> str:
        calls.append({"name": name} | options)
        if cached is None:
            raise RuntimeError("not in the cache")
        revision = options.get("revision") or "main"
        if not options.get("local_files_only"):
            refs.update({revision} - {SHA})
        elif revision not in {SHA, *refs}:
            raise RuntimeError("cannot find the requested revision in the cache")
        return str(cached)

    module = SimpleNamespace(
        HfApi=lambda: SimpleNamespace(model_info=model_info), snapshot_download=snapshot_download
    )
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return calls


def test_the_hub_has_seconds_to_answer_and_sends_no_pickles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A network that drops packets must not hang the command; pytorch_model.bin would be refused anyway."""
    calls = fake_hub(monkeypatch, online=True, cached=tmp_path)
    assert download_model("owner/name") == tmp_path
    assert calls[0] == {"name": "owner/name", "timeout": ANSWER_TIMEOUT_S}
    assert not any("bin" in pattern for pattern in calls[1]["allow_patterns"])


def test_a_model_downloaded_before_is_found_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the field there is no network."""
    calls = fake_hub(monkeypatch, online=False, cached=tmp_path)
    assert download_model("owner/name") == tmp_path
    assert calls[1]["local_files_only"] is True


def test_what_was_downloaded_is_found_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A download by commit left nothing that leads from the name to the commit."""
    refs: set[str] = set()
    fake_hub(monkeypatch, online=True, cached=tmp_path, refs=refs)
    assert download_model("owner/name") == tmp_path
    fake_hub(monkeypatch, online=False, cached=tmp_path, refs=refs)
    assert download_model("owner/name") == tmp_path


def test_offline_without_a_cached_model_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network's own reason is kept, in one line."""
    fake_hub(monkeypatch, online=False, cached=None)
    with pytest.raises(ModelError, match=r"offline.*Name or service not known\).*local directory"):
        download_model("owner/name")


def test_a_download_that_breaks_off_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model exists, the network went away in the middle."""
    fake_hub(monkeypatch, online=True, cached=None)
    with pytest.raises(ModelError, match=r"download of 'owner/name'"):
        download_model("owner/name")


def test_the_real_library_is_called_as_it_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE is set for all tests, so this reaches the real code and no network."""
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    with pytest.raises(ModelError, match="offline"):
        download_model("owner/a-model-that-nobody-has-downloaded")
