"""The models of FluidML's evaluation: the files for all runtimes, and their source modules.

Built from transformers' configs and torch with random weights and a fixed seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from serving import write_feeds


@dataclass(frozen=True, slots=True)
class Subject:
    """A model by its name in tables: the ONNX file, and the feeds beside it."""

    name: str
    file: Path
    feeds: Path

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.feeds) as stored:
            return {x: stored[x] for x in stored.files}


NAMES = {
    "BERT": "bert",
    "GPT-NeoX": "gptneox",
    "I-BERT": "ibert",
    "ConvBERT": "convbert",
    "VGG-16": "vgg16",
    "ResNet-50": "resnet50",
}
SMALL = {"BERT (2 layers of 128)": "small"}


def subjects(folder: Path, names: Sequence[str], is_quick: bool) -> list[Subject]:
    """The models named, all without names; exported to `folder` if they are missing."""
    known = SMALL if is_quick else NAMES
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise SystemExit(f"there are no models {unknown}; known are {', '.join(known)}.")
    return [_subject(name, stem, folder) for name, stem in known.items() if not names or name in names]


def module(stem: str) -> Any:
    """The torch module that `stem`.onnx was exported from, with the same weights."""
    import text_models
    import vision_models

    if stem in vision_models.MODELS:
        return vision_models.build(stem)
    return text_models.Last(text_models.build(_texts()[stem]))


def _subject(name: str, stem: str, folder: Path) -> Subject:
    # Imported here: processes that run one model must not load torch with this module.
    import text_models
    import vision_models

    file = folder / f"{stem}.onnx"
    if stem in vision_models.MODELS:
        vision_models.export(stem, file)
        x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
        return Subject(name, file, write_feeds({"x": x}, folder / f"{stem}.npz"))
    model = _texts()[stem]
    if not file.exists():
        text_models.export(model, file.with_suffix(".partial")).rename(file)
    return Subject(name, file, write_feeds(text_models.feeds(model), folder / f"{stem}.npz"))


def _texts() -> dict[str, Any]:
    import text_models

    return {
        "bert": text_models.BERT,
        "gptneox": text_models.GPT_NEOX,
        "ibert": text_models.IBERT,
        "convbert": text_models.CONVBERT,
        "small": text_models.TextModel("BERT", 2, 128, 4, 64, 2000),
    }
