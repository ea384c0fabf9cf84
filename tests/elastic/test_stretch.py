"""The whole recipe on a tiny model."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pliant.elastic.callbacks import TrainingCallbacks
from pliant.elastic.export import load_weights
from pliant.elastic.network import embed, forward
from pliant.elastic.stretch import state_path, stretch
from pliant.elastic.stretch_options import StretchOptions
from pliant.elastic.training_batches import collate, tokenise
from pliant.errors import InputError, ModelError
from pliant.models.examples import read_examples
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.models.tokenizer import open_tokenizer
from tests.reference_model import run_model
from tests.tiny import FAMILIES, tiny_spec, write_model

Make = Callable[..., StretchOptions]


class Killed(BaseException):
    """What a killed run looks like from inside: nothing after it runs."""


def killed_at(stage: str, step: int) -> TrainingCallbacks:
    def on_step(name: str, done: int, total: int, loss: float) -> None:
        if (name, done) == (stage, step):
            raise Killed

    return TrainingCallbacks(on_step)


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    return load_weights(open_checkpoint(directory))


def test_the_result_answers_the_task_and_reads_back_to_the_same_logits(options: Make, tmp_path: Path) -> None:
    """A stretched directory is a model like any other: what pliant runs is what was measured."""
    report = stretch(options(teacher=tmp_path / "teacher", tune_epochs=12.0, distil_epochs=12.0))
    checkpoint = open_checkpoint(report.out)
    spec = checkpoint.spec
    assert (spec.widths, spec.head.labels, spec.head.pooling) == ((1, 2, 3, 4), ("0", "1"), "mean")
    assert spec.depths == (1, 2, 3)  # what lets a plan leave layers out
    # Two words decide every label; a model that learnt anything gets nearly all of them.
    assert report.teacher >= 0.9
    assert report.grid.accuracy(3, 4) >= 0.9
    told = json.loads((report.out / "elastic.json").read_text())
    assert told["dev"]["accuracy"][2][3] == report.grid.accuracy(3, 4)
    weights, tensors = load_weights(checkpoint), {}
    for name, value in weights.items():
        tensors[name] = value.numpy()
    encoded = open_tokenizer(report.out, spec).encode("the story was good")
    dev = tokenise(open_tokenizer(report.out, spec), read_examples(tmp_path / "dev.tsv", ("0", "1")), None)
    batch = collate(dev[2:3])
    logits = forward(spec, weights, batch, embed(spec, weights, batch), (0, 2), 3).logits[0].detach().numpy()
    np.testing.assert_allclose(logits, run_model(spec, tensors, encoded.ids, encoded.types, 2, 3), atol=2e-5)
    teacher = open_checkpoint(tmp_path / "teacher").spec
    assert (teacher.widths, teacher.trained_depths) == ((4,), (3,))
    assert not state_path(options()).exists()


@pytest.mark.parametrize(("stage", "step"), [("tune", 3), ("distil", 1), ("distil", 7), ("final", 4)])
def test_a_killed_run_continues_to_the_same_weights(
    options: Make, whole: Path, stage: str, step: int
) -> None:
    """Hours of training must survive a kill, and resuming must not be another experiment."""
    again = options(save_every_s=1e-9)
    with pytest.raises(Killed):
        stretch(again, killed_at(stage, step))
    assert not again.out.exists()
    seen: list[str] = []
    stretch(again, TrainingCallbacks(lambda name, done, total, loss: seen.append(name)))
    assert "tune" not in seen or stage == "tune"
    a, b = weights_of(whole), weights_of(again.out)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_state_of_other_options_is_not_continued(options: Make) -> None:
    """Half of one recipe and half of another would be neither."""
    with pytest.raises(Killed):
        stretch(options(save_every_s=1e-9), killed_at("tune", 3))
    with pytest.raises(InputError, match="other options"):
        stretch(options(rate=5e-4))


def test_a_run_killed_while_it_measured_can_finish(
    options: Make, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The teacher is written by then, the result is not; neither stands in the way of the second try."""

    def killed(*_: object, **__: object) -> None:
        raise Killed

    asked = options(teacher=tmp_path / "teacher")
    with monkeypatch.context() as patched:
        patched.setattr("pliant.elastic.stretch.load_weights", killed)
        with pytest.raises(Killed):
            stretch(asked)
    assert (tmp_path / "teacher").exists()
    assert not asked.out.exists()
    stretch(asked, TrainingCallbacks(lambda *step: pytest.fail("it trained again")))
    a, b = weights_of(whole), weights_of(asked.out)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_a_seed_decides_the_weights(options: Make, whole: Path, tmp_path: Path) -> None:
    """The model card promises that its command gives its model; another seed must give another."""
    same = weights_of(stretch(options(out=tmp_path / "same")).out)
    other = weights_of(stretch(options(out=tmp_path / "other", seed=1)).out)
    first = weights_of(whole)
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert not torch.equal(first["layers.0.up.weight"], other["layers.0.up.weight"])


def test_distillation_leaves_the_embeddings_alone(options: Make, tmp_path: Path) -> None:
    """Teacher and submodels share one embedded input, so its weights must be the teacher's."""
    stretch(options(teacher=tmp_path / "teacher"))
    stretched, teacher = weights_of(tmp_path / "out"), weights_of(tmp_path / "teacher")
    assert torch.equal(stretched["embeddings.word"], teacher["embeddings.word"])
    assert not torch.equal(stretched["layers.0.up.weight"], teacher["layers.0.up.weight"])


def test_a_compact_result_is_half_precision_with_coded_embeddings(options: Make) -> None:
    """The shipped model's form, written by the same command."""
    report = stretch(options(is_compact=True))
    checkpoint = open_checkpoint(report.out)
    assert checkpoint.spec.precision == "F16"
    assert checkpoint.embedding_codes() is not None


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_and_pairs_can_be_stretched(family: str, options: Make, tmp_path: Path) -> None:
    """Canonical names hide the family; pairs bring token types, and long ones are cut to fit."""
    rows = [f"{i}\tgood film or bad {'film ' * i}\tit is good\t{('yes', 'no')[i % 2]}" for i in range(14)]
    (tmp_path / "pairs.tsv").write_text("index\tsentence1\tsentence2\tlabel\n" + "\n".join(rows) + "\n")
    model = write_model(tmp_path / family, tiny_spec(family))  # type: ignore[arg-type]
    pairs = {"train": tmp_path / "pairs.tsv", "dev": tmp_path / "pairs.tsv"}
    report = stretch(options(model=model, max_tokens=12, tune_epochs=1.0, distil_epochs=1.0, **pairs))
    assert open_checkpoint(report.out).spec.head.labels == ("no", "yes")
    assert report.grid.n_examples == 14


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("sentence\tlabel\na good film\t1\nbad\n", "line 3"),
        ("sentence\tlabel\na good film\t1\nbad film\t1\n", "at least 2"),
        ("words\tclass\na good film\t1\n", "header"),
    ],
)
def test_a_bad_training_file_is_named(content: str, message: str, options: Make, tmp_path: Path) -> None:
    """A wrong row must stop the run before training, not after an hour of it."""
    path = tmp_path / "bad.tsv"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as caught:
        stretch(options(train=path))
    assert "bad.tsv" in str(caught.value)


def test_labels_that_do_not_match_the_file_are_refused(options: Make, tmp_path: Path) -> None:
    """Three names for two labels would be fine for reading, one name for two is not."""
    with pytest.raises(InputError, match=r"train\.tsv"):
        stretch(options(labels=("only",)))
    unknown = tmp_path / "unknown.tsv"
    unknown.write_text("sentence\tlabel\na good film\t7\n")
    with pytest.raises(InputError, match=r"unknown\.tsv"):
        stretch(options(dev=unknown))


def test_a_taken_target_is_refused_before_training(options: Make, tmp_path: Path) -> None:
    """Finding out after training would lose it."""
    (tmp_path / "out").mkdir()
    with pytest.raises(ModelError, match="exists already"):
        stretch(options())


@pytest.mark.parametrize(
    "change", [{"batch": 1}, {"rate": 0.0}, {"dropout": 1.0}, {"workers": 9}, {"average": 1.0}]
)
def test_options_that_make_no_run_cannot_be_built(change: dict[str, float], options: Make) -> None:
    """A typing error should not start an hour of training."""
    with pytest.raises(InputError):
        options(**change)
