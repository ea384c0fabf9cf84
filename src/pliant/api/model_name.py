"""The name of a model from its source."""

import os
import re
from pathlib import Path

from pliant.settings import user_path

RANDOM = "random:"


def model_name(source: str) -> str:
    """Return the name of the source's file or folder, with only characters that URL paths allow."""
    path = Path(source if source.startswith(RANDOM) else os.path.abspath(user_path(source)))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem if path.suffix == ".onnx" else path.name)
