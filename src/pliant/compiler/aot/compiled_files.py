"""Write the files common to all compiled forms: kernel objects, weights, and the draft directory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.call import Kernel
from pliant.compiler.executable.encode_image import image_kernels
from pliant.errors import InputError
from pliant.kernels.emit.isa import Isa
from pliant.kernels.runtime.aligned_memory import aligned_bytes
from pliant.kernels.runtime.jit import compile_modules
from pliant.store.atomic_directory import atomic_directory, clear_leftovers
from pliant.store.container import FileDigest, FileLayout, TensorField, lay_out, write_file

_SAFETENSORS = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8"}
OBJECTS = "kernels"


@contextmanager
def draft_of(out: Path, mark: str) -> Iterator[Path]:
    """A temporary directory that is renamed to `out` on success and removed on failure.

    An `out` that contains the file `mark` is replaced. Raises InputError when `out` is or contains something
    else, or cannot be written.
    """
    try:
        out = out.resolve()  # a symbolic link stays valid
        clear_leftovers(out)
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file; choose a directory.")
        if out.exists() and any(out.iterdir()) and not (out / mark).is_file():
            raise InputError(f"{out} is not empty and holds no {mark}; choose another directory.")
        with atomic_directory(out) as draft:
            yield draft
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror or error}.") from error


def write_objects(image: Image, out: Path, others: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """Compile every kernel of the image, and the IR texts of `others`, to `kernels/NAME.o`."""
    return write_kernels(image_kernels(image), image.target.isa, out, others)


def write_kernels(
    used: Mapping[str, Kernel], isa: Isa, out: Path, others: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """As `write_objects`, for the kernels `used` and `isa`."""
    texts = dict(others or {}) | {name: kernel.ir(isa) for name, kernel in used.items()}
    objects = dict(zip(texts, compile_modules(list(texts.values()), isa), strict=True))
    (out / OBJECTS).mkdir()
    for name, data in objects.items():
        (out / OBJECTS / f"{name}.o").write_bytes(data)
    return objects


def write_weights(image: Image, path: Path) -> tuple[FileLayout, FileDigest]:
    """Constants and packed weights, in the order of `EncodedProgram.weights`, one in memory at a time."""
    layout = lay_out([_field(image, weight) for weight in (*image.constants, *image.packed)])
    return layout, write_file(path, layout, _weights(image), lambda path: path.open("wb"))


def _field(image: Image, weight: str) -> TensorField:
    if weight in image.packed:
        return TensorField(weight, "U8", (image.packed[weight].n_bytes,))
    array = image.constants[weight]
    kind = _SAFETENSORS.get(str(array.dtype))
    return TensorField(weight, kind, array.shape) if kind else TensorField(weight, "U8", (array.nbytes,))


def _weights(image: Image) -> Iterator[np.ndarray]:
    """The constants unchanged, then the packed weights, one at a time."""
    yield from image.constants.values()
    for packed in image.packed.values():
        memory = aligned_bytes(packed.n_bytes)
        packed.fill(memory)
        yield memory
