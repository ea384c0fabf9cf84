"""`pliant node --models DIR`: which models a folder holds, and that they are opened as named ones are."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pliant.cli.node import NodeArguments
from pliant.cli.shared.node_models import found_models, model_entries, read_options
from pliant.errors import InputError
from pliant.serve.repository.model_folder import models_in
from tests.serve.nodes import PATIENCE_S, running_models
from tests.serve.repository.test_models_under_load import sums
from tests.serve.repository.test_repository_api import OPERATOR, change, index


def test_names_and_versions_are_those_of_files_and_folders(tmp_path: Path) -> None:
    """As in a repository of Triton's; what is hidden, or no model's name, is passed over."""
    for path in (
        *("plain.onnx", "notes.txt", ".hidden.onnx", "no name!.onnx", "both.onnx"),
        *("both/config.json", "directory/config.json", "single/net.onnx"),
        *("weights/net.onnx", "weights/model.safetensors"),
        *("many/1/model.onnx", "many/2/a.onnx", "many/2/b.onnx", "many/config.pbtxt"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    found = {str(key): str(source.relative_to(tmp_path)) for key, source in models_in(tmp_path)}
    assert found == {
        "plain": "plain.onnx",
        "both": "both",
        "directory": "directory",
        "single": "single/net.onnx",
        "weights": "weights",
        "many": "many/1/model.onnx",
        "many version 2": "many/2",
    }
    assert list(models_in(tmp_path / "gone")) == []


def test_an_entry_that_cannot_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as `lost+found` at the root of a file system; the node ended with a traceback."""
    for path in ("good.onnx", "locked/model.onnx", "lost+found/a"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path.name in ("locked", "lost+found", "none"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    assert [str(key) for key, _ in models_in(tmp_path)] == ["good"]
    assert "locked is passed over" in caplog.text
    assert "lost+found" not in caplog.text
    with pytest.raises(InputError, match="none cannot be read"):
        list(models_in(tmp_path / "none"))


def test_a_file_that_comes_into_the_folder_is_loaded_and_answers(tmp_path: Path) -> None:
    """From an empty folder on; a file that is no model is refused, with why."""
    model, folder = sums(tmp_path), tmp_path / "models"
    folder.mkdir()
    args, tables = read_options(NodeArguments(models=folder, threads=1))
    entries = model_entries(args, tables)
    assert entries == []
    with running_models(entries, None, found_models(args), operator_tokens=(OPERATOR,)) as node:
        assert index(node) == {}
        shutil.copy(model, folder / "sums.onnx")
        (folder / "broken.onnx").write_bytes(b"no model")
        assert index(node) == {"broken:1": "UNAVAILABLE", "sums:1": "UNAVAILABLE"}
        assert change(node, "sums", "load").status_code == 200
        refused = change(node, "broken", "load")
        assert refused.status_code == 400
        assert "broken.onnx" in refused.json()["error"]
        about = httpx.get(f"{node.url}/v2/models/sums", timeout=PATIENCE_S).json()
        assert about["name"] == "sums"
        document = httpx.get(f"{node.url}/openapi.json", timeout=PATIENCE_S).json()
        assert {"/v2/models/sums/infer", "/v2/repository/index"} <= document["paths"].keys()


def test_a_folder_that_is_none_is_refused_at_the_start(tmp_path: Path) -> None:
    args, _ = read_options(NodeArguments(models=tmp_path / "none"))
    with pytest.raises(InputError, match="is not a folder: create it"):
        found_models(args)
    with pytest.raises(InputError, match="or a folder with --models"):
        read_options(NodeArguments())
