"""Weights in files beside a model: read from its folder alone, and never beyond what is there."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from pliant.api.compile_onnx import compile as compile_model
from pliant.errors import GraphError, ModelError
from pliant.models.onnx import onnx_external
from pliant.models.onnx.onnx_external import map_file
from pliant.models.onnx.onnx_file import open_onnx
from tests.models.onnx_models import external, linear, parse

N_BYTES = 64 * 48 * 4


def _says(path: Path, **entries: str) -> None:
    """Rewrite what the model says of where its weight is; "" leaves the entry out."""
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    about = {e.key: e.value for e in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in about.items():
        if value or key == "location":
            tensor.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())


def test_missing_external_data_names_tensor_and_file(tmp_path: Path) -> None:
    """Only the small file was copied."""
    path = external(tmp_path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match=r"'W' are in .*weights\.bin, which does not exist"):
        open_onnx(path)


@pytest.mark.parametrize("held", [0, 100, N_BYTES - 1])
def test_truncated_external_data_names_tensor_and_sizes(tmp_path: Path, held: int) -> None:
    """Reading past the end of a map would crash the process."""
    path = external(tmp_path)
    (tmp_path / "weights.bin").write_bytes(b"\x00" * held)
    with pytest.raises(ModelError, match=rf"'W' needs 12288 bytes; .* which has {held}\."):
        open_onnx(path)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("{folder}/weights.bin", "not a relative path"),
        ("{outside}/secret.bin", "not a relative path"),
        ("", "not a relative path"),
        ("weights.bin\0", "not a relative path"),
        ("../secret.bin", "outside the model's folder"),
        ("sub/../../secret.bin", "outside the model's folder"),
        ("./sub/../weights.bin/../../secret.bin", "outside the model's folder"),
        ("../model2/secret.bin", "outside the model's folder"),
        ("link.bin", "outside the model's folder"),
        ("link_to_link.bin", "outside the model's folder"),
        ("linked/secret.bin", "outside the model's folder"),
        ("../nothing.bin", "outside the model's folder"),
        ("loop.bin", "unusable|does not exist|not a regular file"),
        ("x" * 5000, "unusable|does not exist"),
        (".", "not a regular file"),
        ("sub", "not a regular file"),
        ("pipe", "not a regular file"),
        ("missing.bin", "does not exist"),
    ],
)
def test_only_a_regular_file_in_the_models_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str, reason: str
) -> None:
    """A hostile model must read no other file, not even through links, and must not wait on a pipe."""
    folder, opened = tmp_path / "model", []
    (tmp_path / "model2").mkdir()
    for secret in (tmp_path / "secret.bin", tmp_path / "model2" / "secret.bin"):
        secret.write_bytes(b"\x00" * N_BYTES)
    (folder / "sub").mkdir(parents=True)
    path = external(folder)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    (folder / "link_to_link.bin").symlink_to("link.bin")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "loop.bin").symlink_to("loop.bin")
    os.mkfifo(folder / "pipe")
    location = location.format(folder=folder, outside=tmp_path)
    _says(path, location=location)
    open_file = os.open
    monkeypatch.setattr(
        onnx_external.os, "open", lambda at, *flags: (opened.append(Path(at)), open_file(at, *flags))[1]
    )
    with pytest.raises(ModelError, match=reason) as refused:
        open_onnx(path)
    assert "'W'" in str(refused.value)
    assert opened == [path]


def test_a_link_inside_the_folder_is_followed(tmp_path: Path) -> None:
    """Tools that keep files by their hash link to them."""
    path = external(tmp_path)
    (tmp_path / "weights.bin").rename(tmp_path / "blob")
    (tmp_path / "weights.bin").symlink_to("blob")
    assert np.array_equal(open_onnx(path).constants["W"], linear()[1])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offset", "-1"),
        ("offset", "1e3"),
        ("offset", "0x0"),
        ("offset", "9" * 19),
        ("offset", "9" * 30),
        ("offset", "1"),
        ("offset", str(N_BYTES)),
        ("offset", " 0"),
        ("offset", "\u0663"),
        ("length", "-1"),
        ("length", "0"),
        ("length", str(N_BYTES - 1)),
        ("length", str(N_BYTES + 1)),
        ("length", str(1 << 62)),
        ("length", "all"),
    ],
)
def test_a_wild_place_is_refused(tmp_path: Path, key: str, value: str) -> None:
    """Offsets and lengths are text in the file."""
    path = external(tmp_path)
    _says(path, **{key: value})
    with pytest.raises(ModelError, match="'W'"):
        open_onnx(path)


def test_offset_and_length_may_be_left_out(tmp_path: Path) -> None:
    """ONNX makes both optional: the whole file is the tensor."""
    path = external(tmp_path)
    _says(path, offset="", length="")
    assert np.array_equal(open_onnx(path).constants["W"], linear()[1])


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/hostname", "link.bin"])
def test_a_constants_values_are_guarded_like_a_weights(tmp_path: Path, location: str) -> None:
    """A tensor in a node's attribute may lie in a file too."""
    (tmp_path / "secret.bin").write_bytes(b"\x00" * 8)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = parse(
        "g (float[2] x) => (float[2] y) { c = Constant <value = float[2] {1, 2}> () y = Add(x, c) }"
    )
    tensor = model.graph.node[0].attribute[0].t
    tensor.Clear()
    tensor.name, tensor.data_type, tensor.data_location = "c", TensorProto.FLOAT, TensorProto.EXTERNAL
    tensor.dims.append(2)
    tensor.external_data.add(key="location", value=location)
    path = tmp_path / "m" / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises((GraphError, ModelError), match=r"\bc\b"):
        compile_model(path, threads=1)


def test_a_pipe_in_a_files_place_does_not_block(tmp_path: Path) -> None:
    """It may be put there between the look and the reading."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="not a regular file"):
        map_file(tmp_path / "pipe")


def test_a_folder_in_a_files_place_is_refused(tmp_path: Path) -> None:
    """What opens is not always what reads."""
    with pytest.raises(ModelError, match="not a regular file"):
        map_file(tmp_path)


def _cut(path: Path) -> None:
    os.truncate(path, 16)


def _overwrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, (1, 1))  # a clock of coarse ticks may not have moved


@pytest.mark.parametrize("name", ["weights.bin", "model.onnx"])
@pytest.mark.parametrize("change", [_cut, _overwrite])
def test_a_file_written_to_is_refused_at_the_next_shape(
    tmp_path: Path, name: str, change: Callable[[Path], None]
) -> None:
    """Its map has the new bytes, or none, whose reading ends the process."""
    with compile_model(external(tmp_path), threads=1) as session:
        change(tmp_path / name)
        with pytest.raises(ModelError, match=rf"{name} was changed after"):
            session.run({"x": np.ones((2, 64), np.float32)})


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_replaced_or_gone_is_still_read_as_it_was(tmp_path: Path, is_gone: bool) -> None:
    """Updates by renaming leave what runs alone."""
    x = np.ones((2, 64), np.float32)
    with compile_model(external(tmp_path), threads=1) as session:
        (tmp_path / "weights.bin").unlink()
        if not is_gone:
            (tmp_path / "weights.bin").write_bytes(b"another")
        assert np.allclose(session.run({"x": x})["y"], x @ linear()[1], atol=1e-4)


def test_external_data_of_a_model_in_memory_asks_for_its_path(tmp_path: Path) -> None:
    """Bytes have no folder beside them."""
    with pytest.raises(ModelError, match="give its path instead"):
        open_onnx(external(tmp_path).read_bytes())
