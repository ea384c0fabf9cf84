"""Measured accuracy in the manifest: added later, checked, and absent from stores of before."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from pliant.errors import StoreError
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.store.build import build
from pliant.store.manifest import (
    AccuracyEntry,
    AccuracyFold,
    AccuracyTable,
    put_accuracy,
    put_importance,
    read_manifest,
)
from pliant.store.read import open_store

ENTRY = AccuracyEntry(2, 2, 32, 2 / 3, -0.5)
FOLD = AccuracyFold(3, (2 / 3,), (-0.5,))


@pytest.fixture
def store(tiny_model: Callable[..., Path], tmp_path: Path) -> Path:
    return build(open_checkpoint(tiny_model("bert", widths=(2, 4))), tmp_path / "s")


def test_accuracy_is_added_without_touching_weights(store: Path) -> None:
    """It needs held-out examples and comes later; the store's identity must outlive it."""
    before = read_manifest(store)
    table = AccuracyTable(300, (ENTRY, replace(ENTRY, bits=2, log_likelihood=-0.1 - 0.2)))
    put_accuracy(store, table)
    with open_store(store) as opened:
        assert opened.manifest.accuracy == table
        assert opened.manifest == replace(before, accuracy=table, check=opened.manifest.check)
    text = json.loads((store / "manifest.json").read_text())
    assert text["accuracy"]["entries"][0] == {
        "n": 2, "m": 2, "bits": 32, "accuracy": 2 / 3, "log_likelihood": -0.5
    }  # fmt: skip


def test_a_manifest_of_before_there_was_accuracy_still_opens(store: Path) -> None:
    """Its check was made over the fields it has: a field that came later must not break it."""
    text = json.loads((store / "manifest.json").read_text())
    del text["accuracy"]
    text["check"] = ""
    compact = json.dumps(text, separators=(",", ":"))
    text["check"] = sha256(compact.encode()).hexdigest()
    (store / "manifest.json").write_text(json.dumps(text))
    assert read_manifest(store).accuracy is None


@pytest.mark.parametrize(("widths", "depths"), [((2, 4), (1, 2)), ((4,), (2,))])
def test_a_store_of_before_depths_were_recorded_opens_and_keeps_layers_unless_it_has_widths(
    tiny_model: Callable[..., Path], tmp_path: Path, widths: tuple[int, ...], depths: tuple[int, ...]
) -> None:
    """Packed stores outlive versions; of one without trained widths nobody knows that layers may go."""
    path = build(open_checkpoint(tiny_model("bert", widths=widths)), tmp_path / "old")
    text = json.loads((path / "manifest.json").read_text())
    del text["spec"]["depths"]
    text |= {"version": 2, "check": ""}
    compact = {name: value for name, value in text.items() if value is not None or name != "accuracy"}
    text["check"] = sha256(json.dumps(compact, separators=(",", ":")).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps(text))
    assert read_manifest(path).spec.trained_depths == depths
    put_importance(path, ((1.0,) * 4,) * 2)
    assert read_manifest(path).spec.trained_depths == depths


def test_a_changed_accuracy_is_damage(store: Path) -> None:
    """A flipped bit in it would choose another submodel and say nothing."""
    put_accuracy(store, AccuracyTable(300, (ENTRY,)))
    path = store / "manifest.json"
    path.write_text(path.read_text().replace("-0.5", "-0.4"))
    with pytest.raises(StoreError, match="does not match its check"):
        read_manifest(store)


@pytest.mark.parametrize(
    "entry", [replace(ENTRY, n=3), replace(ENTRY, m=3), replace(ENTRY, bits=7), replace(ENTRY, n=0)]
)
def test_accuracy_of_what_the_store_does_not_hold_is_refused(store: Path, entry: AccuracyEntry) -> None:
    """A table of another model must not guide this one."""
    with pytest.raises(StoreError, match="does not fit a model of 2 layers and widths 2,4"):
        put_accuracy(store, AccuracyTable(300, (entry,)))


def test_values_that_cannot_be_are_refused() -> None:
    """nan compares with nothing, and a submodel measured twice has two accuracies."""
    for entry in (replace(ENTRY, accuracy=1.5), replace(ENTRY, log_likelihood=float("nan"))):
        with pytest.raises(StoreError, match="2x2 at 32 bits"):
            AccuracyTable(300, (entry,))
    for folds in ((FOLD,), (FOLD, replace(FOLD, n_examples=1)), (FOLD, replace(FOLD, accuracy=(0.1,)))):
        with pytest.raises(StoreError, match="folds"):
            AccuracyTable(2 * FOLD.n_examples, (ENTRY,), folds)
    assert AccuracyTable(2 * FOLD.n_examples, (ENTRY,), (FOLD, FOLD)).folds[1] == FOLD
    for n_examples, entries in ((0, (ENTRY,)), (300, ()), (300, (ENTRY, ENTRY))):
        with pytest.raises(StoreError, match="needs examples"):
            AccuracyTable(n_examples, entries)
