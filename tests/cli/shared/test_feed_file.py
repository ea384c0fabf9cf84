"""Feeds read from files: arrays by name, whichever way they were written."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pliant.cli.shared.feed_file import labelled_feeds, read_feeds
from pliant.errors import InputError

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_an_npz_keeps_types_and_shapes(tmp_path: Path) -> None:
    """What numpy.savez wrote is fed as it is."""
    np.savez(tmp_path / "f.npz", x=X, n=np.int64([7]))
    feeds = read_feeds(tmp_path / "f.npz")
    assert list(feeds) == ["x", "n"]
    assert (feeds["x"].tobytes(), feeds["x"].dtype, feeds["n"].tolist()) == (X.tobytes(), np.float32, [7])


@pytest.mark.parametrize("kind", ["npz", "json"])
def test_standard_input_says_by_its_content_what_it_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe has no name to tell by."""
    written = io.BytesIO()
    np.savez(written, x=X)
    content = written.getvalue() if kind == "npz" else json.dumps({"x": X.tolist()}).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    assert np.array_equal(read_feeds(Path("-"))["x"], X)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a file of feeds"),
        (b"[1, 2]", "is not a file of feeds"),
        (b'{"x": ', "is not a file of feeds"),
        (b"PK\x03\x04 cut", "is not a valid .npz"),
        (b"\x93NUMPY", "is not a file of feeds"),
    ],
)
def test_what_holds_no_feeds_is_refused_with_what_would(content: bytes, said: str, tmp_path: Path) -> None:
    """A damaged archive was a traceback of zipfile."""
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(InputError, match=f"{said}.*numpy.savez"):
        read_feeds(tmp_path / "f")


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    """A file of feeds must not run code."""
    np.savez(tmp_path / "f.npz", x=np.array([{}], object))
    with pytest.raises(InputError, match=r"is not a valid \.npz"):
        read_feeds(tmp_path / "f.npz")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """With the system's reason."""
    with pytest.raises(InputError, match=r"gone\.npz cannot be read: No such file"):
        read_feeds(tmp_path / "gone.npz")


def test_labels_are_one_whole_number_a_row(tmp_path: Path) -> None:
    """An accuracy of rows that belong to other labels would look like any other."""
    np.savez(tmp_path / "f.npz", x=X, labels=np.int32([1, 0]))
    feeds, labels = labelled_feeds(tmp_path / "f.npz")
    assert (list(feeds), labels.tolist()) == (["x"], [1, 0])
    for wrong in ({}, {"labels": np.float32([1, 0])}, {"labels": np.zeros((2, 2), int)}):
        np.savez(tmp_path / "wrong.npz", x=X, **wrong)
        with pytest.raises(InputError, match="needs 'labels': the class of each row"):
            labelled_feeds(tmp_path / "wrong.npz")
    np.savez(tmp_path / "wrong.npz", x=X, labels=np.int32([1, 0, 1]))
    with pytest.raises(InputError, match=r"holds 3 labels, but 'x' is \[2, 3\]"):
        labelled_feeds(tmp_path / "wrong.npz")
