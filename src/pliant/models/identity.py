"""The content hash of a model's files, by which devices check that they hold the same model."""

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from hashlib import file_digest, sha256
from pathlib import Path

from pliant.errors import ModelError
from pliant.models.hf.config import module_files
from pliant.models.hf.safetensors_file import index_weights

_TOKENIZER = "tokenizer.json"


def files_identity(files: Iterable[Path], cache: Path) -> str:
    """SHA-256, in hexadecimal digits, over lines `name sha256` of `files` in the order given.

    Hashes of files are stored in `cache` by path, size and modification time. Raises ModelError for a file
    that cannot be read.
    """
    lines = "".join(f"{file.name} {_digest(file, cache)}\n" for file in files)
    return sha256(lines.encode()).hexdigest()


def directory_identity(directory: Path, cache: Path) -> str:
    """The hash of a Hugging Face directory's configuration, weights, tokenizer, and modules of pooling.

    Raises ModelError.
    """
    weights = sorted({tensor.file for tensor in index_weights(directory).values()})
    tokenizer = [path for path in (directory / _TOKENIZER,) if path.is_file()]
    return files_identity((directory / "config.json", *weights, *tokenizer, *module_files(directory)), cache)


def _digest(file: Path, cache: Path) -> str:
    """SHA-256 of a file, computed once for each size and modification time."""
    try:
        found = file.stat()
        stamp = f"{file.resolve()}\n{found.st_size} {found.st_mtime_ns}\n"
        kept = cache / "identities" / sha256(str(file.resolve()).encode()).hexdigest()
        for text in _text(kept):
            if text.startswith(stamp):
                return text.removeprefix(stamp)
        with file.open("rb") as opened:
            digest = file_digest(opened, "sha256").hexdigest()
    except OSError as e:
        raise ModelError(f"{file} cannot be read: {e.strerror or e}.") from e
    # Without a cache the next start only has to hash again.
    with contextlib.suppress(OSError):
        _write(kept, stamp + digest)
    return digest


def _text(path: Path) -> Iterator[str]:
    """The text of a file that may not exist."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        yield path.read_text()


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
