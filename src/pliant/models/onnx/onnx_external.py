"""Map the files of an ONNX model and its weights; weight files must lie inside the model's folder."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from pliant import system
from pliant.errors import ModelError

Stamp = tuple[int, int, int, int]
"""Device, inode, bytes and modification time."""


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A file's mapped bytes, with a stamp that shows whether the file changed since."""

    path: Path
    memory: memoryview
    stamp: Stamp

    def drop_pages(self) -> None:
        """Let the system reclaim the pages; they are read again when needed."""
        system.drop_pages(self.memory)

    def check_same(self) -> None:
        """Raise ModelError if the file was written to since: the mapping would mix both versions.

        A file that was deleted, or replaced by another of its name, is still mapped unchanged.
        """
        try:
            now = _stamp(os.stat(self.path))
        except OSError:
            return
        if now[:2] == self.stamp[:2] and now != self.stamp:
            raise ModelError(f"{self.path} was changed after the model was opened: compile it again.")


@final
class ExternalData:
    """External weight files of a model, each mapped once; `directory` is None for a model in memory.

    The maps live as long as arrays made from them.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._files: dict[str, MappedFile] = {}

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The mapped files."""
        return tuple(self._files.values())

    def read(self, proto: Any, n_bytes: int) -> memoryview:
        """The bytes of an external tensor. Raises ModelError naming tensor and file if bytes are missing."""
        about = {entry.key: entry.value for entry in proto.external_data}
        location = about.get("location", "")
        file = self._file(location, proto.name)
        offset = _number(about.get("offset", "0"), proto.name)
        length = _number(about.get("length", str(n_bytes)), proto.name)
        if length != n_bytes or offset + n_bytes > len(file):
            raise ModelError(
                f"tensor {proto.name!r} needs {n_bytes} bytes; the model says bytes {offset} to "
                f"{offset + length} of {location!r}, which has {len(file)}."
            )
        return file[offset : offset + n_bytes]

    def _file(self, location: str, tensor: str) -> memoryview:
        if location not in self._files:
            self._files[location] = map_file(self._path(location, tensor))
        return self._files[location].memory

    def _path(self, location: str, tensor: str) -> Path:
        if self._directory is None:
            raise ModelError(
                f"the values of tensor {tensor!r} are in the file {location!r}, but the model came as bytes: "
                "give its path instead."
            )
        if not location or "\0" in location or Path(location).is_absolute():
            raise ModelError(
                f"tensor {tensor!r} names {location!r} as its file, which is not a relative path."
            )
        base = self._directory.resolve()
        try:
            path = (base / location).resolve()
            inside, there, is_file = path.is_relative_to(base), path.exists(), path.is_file()
        except (OSError, RuntimeError) as error:
            raise ModelError(f"tensor {tensor!r} names an unusable file: {error}") from error
        if not inside:
            raise ModelError(
                f"tensor {tensor!r} names {location!r}, which is outside the model's folder {base}: "
                "copy the file there."
            )
        if not there:
            raise ModelError(f"the values of tensor {tensor!r} are in {path}, which does not exist.")
        if not is_file:
            raise ModelError(f"tensor {tensor!r} names {location!r}, which is not a regular file.")
        return path


def map_file(path: Path) -> MappedFile:
    """A file, mapped read-only. Raises ModelError when it cannot be read, or is not a regular file."""
    try:
        # If a pipe replaced the file after the check, opening it must not block.
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            found = os.fstat(opened)
            if not stat.S_ISREG(found.st_mode):
                raise ModelError(f"{path} is not a regular file.")
            memory = system.map_file(opened) if found.st_size else memoryview(b"")
        finally:
            os.close(opened)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from error
    return MappedFile(path, memory, _stamp(found))


def _stamp(found: os.stat_result) -> Stamp:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _number(text: str, tensor: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ModelError(f"tensor {tensor!r} gives {text!r} as a place in its external file.")
    return int(text)
