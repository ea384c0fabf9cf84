"""The options of `pliant stretch`: paths, sizes and rates."""

from dataclasses import dataclass
from pathlib import Path

from pliant.errors import InputError


@dataclass(frozen=True, slots=True)
class StretchOptions:
    """The options of one stretching run; equal options give equal weights.

    `model` is a directory of the BERT family, `train` and `dev` are TSVs (`models.examples`), `out` receives
    the elastic model and `teacher`, if given, the unstretched fine-tuned one. Epochs may be fractions. `dev`
    is used only for the report: no choice in a run depends on it. `labels` renames the labels of the TSVs;
    None keeps their names. `widths` None means a quarter, a half, three quarters and all of the heads;
    `distil_batch` None means `batch`. Texts above `max_tokens` are truncated for training. A batch is split
    over `workers` threads, whose gradients are added in a fixed order; another number of workers rounds
    differently. `is_compact` writes half precision with 6-bit word embeddings.
    """

    model: Path
    train: Path
    dev: Path
    out: Path
    teacher: Path | None = None
    labels: tuple[str, ...] | None = None
    widths: tuple[int, ...] | None = None
    tune_epochs: float = 2.0
    distil_epochs: float = 2.0
    final_epochs: float = 0.25
    batch: int = 32
    distil_batch: int | None = None
    rate: float = 1e-4
    final_rate: float = 2e-5
    temperature: float = 2.0
    hidden_weight: float = 0.5
    n_random: int = 1
    dropout: float = 0.1
    average: float = 0.995
    max_tokens: int = 128
    seed: int = 0
    workers: int = 2
    save_every_s: float = 120.0
    is_compact: bool = False

    def __post_init__(self) -> None:
        for name in ("tune_epochs", "distil_epochs", "rate", "final_rate", "temperature", "save_every_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} is {getattr(self, name)}, but must be above 0.")
        for name, least in (
            ("batch", 2),
            ("distil_batch", 2),
            ("workers", 1),
            ("max_tokens", 8),
            ("n_random", 0),
        ):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)}, but must be at least {least}.")
        for name in ("dropout", "average", "hidden_weight", "final_epochs"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}, but must not be negative.")
        if not (self.dropout < 1 and self.average < 1):
            raise InputError(f"dropout {self.dropout} and average {self.average} must be below 1.")
        smallest = min(self.batch, self.distil_batch or self.batch)
        if self.workers > smallest:
            raise InputError(f"a batch of {smallest} cannot be split over {self.workers} workers.")
