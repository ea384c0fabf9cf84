"""The model that ships with pliant and what its card claims."""

import json
from importlib import resources
from pathlib import Path

import pytest

from pliant.models.hf.checkpoint import open_checkpoint

SHIPPED = Path(str(resources.files("pliant"))) / "models" / "assets" / "sst2"


def test_the_shipped_model_opens_and_stays_within_its_size() -> None:
    """31 MB is what a package may reasonably carry; half precision and coded embeddings keep it there."""
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) <= 31_000_000
    checkpoint = open_checkpoint(SHIPPED)
    spec = checkpoint.spec
    assert (spec.n_layers, spec.n_heads, spec.hidden, spec.widths) == (6, 12, 384, (3, 6, 9, 12))
    assert (spec.precision, spec.head.labels) == ("F16", ("negative", "positive"))
    assert checkpoint.embedding_codes() is not None


def test_the_card_tells_the_measured_grid() -> None:
    """A card typed by hand drifts from what was measured; the JSON beside it is what was measured."""
    told = json.loads((SHIPPED / "elastic.json").read_text())["dev"]
    card = (SHIPPED / "README.md").read_text(encoding="utf-8")
    rows = [
        f"| {n} | {' | '.join(f'{100 * a:.1f}' for a in row)} |" for n, row in enumerate(told["accuracy"], 1)
    ]
    assert [row for row in rows if row not in card] == []


@pytest.mark.slow
def test_the_card_can_be_measured_again(data: Path) -> None:
    """One submodel on the 872 sentences, from the files that ship."""
    from pliant.elastic.export import load_weights
    from pliant.elastic.network import embed, forward
    from pliant.elastic.training_batches import batch_by_length, collate, tokenise
    from pliant.models.examples import read_examples
    from pliant.models.spec import picked_layers
    from pliant.models.tokenizer import open_tokenizer

    checkpoint = open_checkpoint(SHIPPED)
    spec, weights = checkpoint.spec, load_weights(checkpoint)
    dev = tokenise(
        open_tokenizer(SHIPPED, spec), read_examples(data / "sst2/dev.tsv", spec.head.labels or ()), None
    )
    correct = 0
    for indices in batch_by_length(dev, 64):
        batch = collate([dev[i] for i in indices])
        answer = forward(spec, weights, batch, embed(spec, weights, batch), picked_layers(6, 3), 3)
        correct += int((answer.logits.argmax(1) == batch.labels).sum())
    # Other CPUs round differently: a sentence on the border may fall to the other side.
    assert correct / len(dev) == pytest.approx(0.858, abs=0.003)
