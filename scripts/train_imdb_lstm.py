"""Train the model `imdb-lstm` that ships with pliant: one LSTM layer over words. Knows torch, not pliant.

    python scripts/train_imdb_lstm.py IMDB_DIR -o DIR [--work DIR]

IMDB_DIR holds train.tsv.gz (`sentence<TAB>label`, 1 = positive), of which a tenth is held out: the epoch
that does best on that is written to DIR in half precision. The test set is not read: `pliant eval DIR
test.tsv.gz` says what the written files reach. A run that was stopped goes on after its last whole epoch.
"""

import argparse
import csv
import gzip
import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
from safetensors.torch import save_file
from tokenizers import models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

PAD, UNKNOWN = 0, 1


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the shipped model was trained with."""

    words: int = 16_000
    embedding: int = 96
    hidden: int = 64
    epochs: int = 3
    batch: int = 64
    head_words: int = 64  # of longer reviews, in training
    tail_words: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    word_dropout: float = 0.15
    embedding_dropout: float = 0.4
    pooled_dropout: float = 0.5
    averaging: float = 0.998
    seed: int = 0


class Network(nn.Module):
    """Words -> LSTM -> greatest and mean state -> two logits."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.embedding = nn.Embedding(recipe.words, recipe.embedding, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, std=0.3)
        self.rnn = nn.LSTM(recipe.embedding, recipe.hidden, batch_first=True)
        self.classifier = nn.Linear(2 * recipe.hidden, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        recipe = self.recipe
        if self.training:
            ids = ids.masked_fill((torch.rand(ids.shape) < recipe.word_dropout) & (ids != PAD), UNKNOWN)
        x = self.embedding(ids)
        if self.training:  # the same units at all steps
            keep = 1 - recipe.embedding_dropout
            x = x * torch.bernoulli(torch.full((len(ids), 1, x.shape[2]), keep)) / keep
        states, _ = self.rnn(x)
        is_padding = (torch.arange(ids.shape[1]) >= lengths[:, None])[:, :, None]
        greatest = states.masked_fill(is_padding, -torch.inf).amax(1)
        mean = states.masked_fill(is_padding, 0.0).sum(1) / lengths[:, None]
        pooled = torch.cat([greatest, mean], 1)
        return self.classifier(nn.functional.dropout(pooled, recipe.pooled_dropout, self.training))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, help="where whole epochs are kept (default: OUT.work)")
    parser.add_argument("--threads", type=int, default=1, help="more of them differ in rounding")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    recipe = Recipe()
    work = options.work or options.out.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)

    examples = read(options.data / "train.tsv.gz")
    order = np.random.default_rng(recipe.seed).permutation(len(examples))
    texts, labels = [examples[i][0] for i in order], torch.tensor([examples[i][1] for i in order])
    n_held_out = len(order) // 10
    tokenizer = word_tokenizer(texts[n_held_out:], recipe.words)
    ids = [np.array(e.ids, np.int32) for e in tokenizer.encode_batch(texts)]
    held_out, train = range(n_held_out), range(n_held_out, len(order))

    torch.manual_seed(recipe.seed)
    network = Network(recipe)
    begin_with_odds(network, ids, labels, train)
    run = Run(recipe, network, steps=math.ceil(len(train) / recipe.batch) * recipe.epochs)
    kept = work / "epoch.pt"
    if kept.exists():
        run.restore(torch.load(kept))
    while run.epoch < recipe.epochs:
        start = time.perf_counter()
        loss = run.learn(ids, labels, train)
        accuracy = run.accuracy(ids, labels, held_out)
        if accuracy > run.best:
            run.best = accuracy
            write(options.out, run.averaged, tokenizer, recipe, {"held_out": accuracy, "epoch": run.epoch})
        torch.save(run.state(), kept.with_suffix(".new"))
        kept.with_suffix(".new").replace(kept)
        seconds = time.perf_counter() - start
        print(f"epoch {run.epoch}: loss {loss:.4f}, held out {accuracy:.2%}, {seconds:.0f} s", flush=True)


class Run:
    """The state of a training run, at the end of an epoch."""

    def __init__(self, recipe: Recipe, network: Network, steps: int) -> None:
        self.recipe, self.network, self.steps = recipe, network, steps
        self.averaged = Network(recipe)
        self.averaged.load_state_dict(network.state_dict())
        self.averaged.eval()
        self.optimizer = torch.optim.AdamW(
            network.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min((step + 1) / 100, 1.0) * max(1 - step / steps, 0.0)
        )
        self.epoch, self.best = 0, 0.0

    def learn(self, ids: list[np.ndarray], labels: Tensor, members: range) -> float:
        """One epoch; the mean loss."""
        recipe, total = self.recipe, 0.0
        self.network.train()
        shortened = {i: shorten(ids[i], recipe) for i in members}
        batches = by_length(shortened, recipe.batch, np.random.default_rng([recipe.seed, self.epoch]))
        for done, batch in enumerate(batches):
            if done % 50 == 0:
                print(f"epoch {self.epoch + 1}: {done} of {len(batches)} batches", flush=True)
            logits = self.network(*padded([shortened[i] for i in batch]))
            loss = cross_entropy(logits, labels[batch], label_smoothing=0.05)
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            step = self.schedule.last_epoch
            decay = min(recipe.averaging, (step + 1) / (step + 10))
            with torch.no_grad():
                for mean, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                    mean.lerp_(now, 1 - decay)
            total += loss.item()
        self.epoch += 1
        return total / len(batches)

    @torch.no_grad()
    def accuracy(self, ids: list[np.ndarray], labels: Tensor, members: range) -> float:
        """Of the averaged weights on whole reviews."""
        right = 0
        order = sorted(members, key=lambda i: len(ids[i]))
        for first in range(0, len(order), 50):
            batch = order[first : first + 50]
            logits = self.averaged(*padded([ids[i] for i in batch]))
            right += int((logits.argmax(1) == labels[batch]).sum())
        return right / len(members)

    def state(self) -> dict[str, object]:
        parts = ("network", "averaged", "optimizer", "schedule")
        states = {part: getattr(self, part).state_dict() for part in parts}
        return {**states, "epoch": self.epoch, "best": self.best, "random": torch.get_rng_state()}

    def restore(self, state: dict[str, object]) -> None:
        for part in ("network", "averaged", "optimizer", "schedule"):
            getattr(self, part).load_state_dict(state[part])
        self.epoch, self.best = state["epoch"], state["best"]
        torch.set_rng_state(state["random"])


def read(path: Path) -> list[tuple[str, int]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"], int(row["label"])) for row in rows]


def word_tokenizer(texts: list[str], n_words: int) -> tokenizers.Tokenizer:
    """Small letters, split at white space and punctuation, the most frequent words."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"[PAD]": PAD, "[UNK]": UNKNOWN}, "[UNK]"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace("<br />", " "), normalizers.NFKC(), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=n_words, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def begin_with_odds(network: Network, ids: list[np.ndarray], labels: Tensor, members: range) -> None:
    """The first number of a word's vector begins as log odds of a positive review (Wang, Manning 2012)."""
    counts = np.ones((2, len(network.embedding.weight)))
    for i in members:
        counts[int(labels[i]), np.unique(ids[i])] += 1
    odds = np.log(counts[1] / counts[1].sum()) - np.log(counts[0] / counts[0].sum())
    with torch.no_grad():
        network.embedding.weight[2:, 0] = torch.from_numpy(odds[2:]).float()


def shorten(ids: np.ndarray, recipe: Recipe) -> np.ndarray:
    """A long review's head and tail."""
    if len(ids) <= recipe.head_words + recipe.tail_words:
        return ids
    return np.concatenate([ids[: recipe.head_words], ids[-recipe.tail_words :]])


def by_length(ids: dict[int, np.ndarray], size: int, random: np.random.Generator) -> list[list[int]]:
    """Batches of about equally long reviews, in a random order."""
    members = list(ids)
    noisy = np.array([len(ids[i]) for i in members]) * random.uniform(0.9, 1.1, len(members))
    order = [members[i] for i in np.argsort(noisy)]
    batches = [order[first : first + size] for first in range(0, len(order), size)]
    random.shuffle(batches)
    return batches


def padded(ids: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    lengths = [len(i) for i in ids]
    whole = np.full((len(ids), max(lengths)), PAD, np.int64)
    for row, one in zip(whole, ids, strict=True):
        row[: len(one)] = one
    return torch.from_numpy(whole), torch.tensor(lengths)


def write(
    out: Path, network: Network, tokenizer: tokenizers.Tokenizer, recipe: Recipe, reached: dict[str, float]
) -> None:
    """config.json, tokenizer.json and model.safetensors in half precision."""
    out.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "recurrent",
        "cell": "lstm",
        "vocab_size": recipe.words,
        "embedding_size": recipe.embedding,
        "hidden_size": recipe.hidden,
        "num_layers": 1,
        "bidirectional": False,
        "pooling": ["max", "mean"],
        "id2label": {"0": "negative", "1": "positive"},
        "training": asdict(recipe) | reached,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    tensors = {name: w.detach().half().contiguous() for name, w in network.state_dict().items()}
    save_file(tensors, out / "model.safetensors")


if __name__ == "__main__":
    main()
