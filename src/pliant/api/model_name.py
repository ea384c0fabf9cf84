"""What a model is called by the source it was opened from."""

import os
import re
from pathlib import Path

from pliant.settings import user_path

RANDOM = "random:"


def model_name(source: str) -> str:
    """The source's file or folder, without what paths of requests have not."""
    path = Path(source if source.startswith(RANDOM) else os.path.abspath(user_path(source)))
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem if path.suffix == ".onnx" else path.name)
