"""A compiled graph as a directory: `program.json`, `weights.safetensors`, `kernels/*.o`.

Weights are memory-mapped when it is opened; kernels and weights are checked against their hashes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from shutil import copyfile

import msgspec
import numpy as np
import xxhash

from pliant.compiler.aot.compiled_files import OBJECTS, draft_of, write_objects, write_weights
from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.encode_image import EncodedProgram, arena_tensors, encode
from pliant.errors import KernelError, StoreError
from pliant.kernels.emit.isa import ISAS, host_isa, is_runnable
from pliant.kernels.runtime.loader import load
from pliant.system import map_file

PROGRAM, WEIGHTS = "program.json", "weights.safetensors"
VERSION = 2
_CHUNK = 1 << 20
_NO_FILES: Mapping[str, Path] = {}


@dataclass(frozen=True, slots=True)
class _File:
    """The contents of `program.json`: a manifest and its hash, since its arguments are used as addresses
    without further checks.
    """

    version: int
    xxh3: int
    manifest: msgspec.Raw


@dataclass(frozen=True, slots=True)
class _Manifest:
    isa: str
    features: str
    program: EncodedProgram
    offsets: dict[str, int]
    sizes: dict[str, int]
    weights_bytes: int
    weights_xxh3: int
    objects: dict[str, int]
    model: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class CompiledDirectory:
    """An opened directory: the program, its weights as bytes over the mapping, its kernels in memory.

    `identity` is the result of `compiled_identity`.
    """

    identity: str
    program: EncodedProgram
    weights: Mapping[str, np.ndarray]
    addresses: Mapping[str, int]


def save(image: Image, out: Path, model: str | None = None, files: Mapping[str, Path] = _NO_FILES) -> None:
    """Write `image` into the directory `out`, atomically; a compiled graph there is replaced.

    `model` is the content hash of the source model: see `compiled_identity`. `files` are copied to their
    names in the directory. Raises InputError when `out` has other contents or cannot be written.
    """
    with draft_of(out, PROGRAM) as draft:
        objects = write_objects(image, draft)
        layout, written = write_weights(image, draft / WEIGHTS)
        manifest = _Manifest(
            isa=image.target.isa.name,
            features=image.target.isa.features,
            program=replace(encode(image), tensors=arena_tensors(image)),
            offsets={f.name: at for f, at in zip(layout.fields, layout.offsets, strict=True)},
            sizes={f.name: f.n_bytes for f in layout.fields},
            weights_bytes=written.n_bytes,
            weights_xxh3=written.xxh3,
            objects={name: xxhash.xxh3_64_intdigest(data) for name, data in objects.items()},
            model=model,
        )
        for name, path in files.items():
            (draft / name).parent.mkdir(exist_ok=True)
            copyfile(path, draft / name)
        text = msgspec.json.encode(manifest)
        whole = _File(VERSION, xxhash.xxh3_64_intdigest(text), msgspec.Raw(text))
        (draft / PROGRAM).write_bytes(msgspec.json.encode(whole))


def load_directory(directory: Path) -> CompiledDirectory:
    """Map the weights and load the kernels of a directory that `save` wrote.

    Raises StoreError naming the file that is missing, truncated or changed, or an unknown version;
    KernelError when this CPU is not the target.
    """
    manifest = _manifest(directory)
    rows = [isa for isa in ISAS if (isa.name, isa.features) == (manifest.isa, manifest.features)]
    if not rows or not is_runnable(rows[0]):
        made_for = rows[0].target if rows else f"{manifest.isa}{manifest.features}"
        raise KernelError(
            f"{directory} was compiled for {made_for}, which this CPU cannot run: it runs "
            f"{host_isa().target}. Compile the model with --target {host_isa().target}."
        )
    return CompiledDirectory(
        _identity(manifest), manifest.program, _weights(directory, manifest), _kernels(directory, manifest)
    )


def compiled_identity(directory: Path) -> str:
    """The content hash of the source model of `directory`; of the directory itself if none is recorded.

    Directories compiled from one file for several CPUs have the same identity. Raises StoreError.
    """
    return _identity(_manifest(directory))


def _identity(manifest: _Manifest) -> str:
    return manifest.model or sha256(msgspec.json.encode(manifest)).hexdigest()


def _manifest(directory: Path) -> _Manifest:
    again = "compile the model again"
    try:
        file = msgspec.json.decode((directory / PROGRAM).read_bytes(), type=_File)
        if file.version != VERSION:
            raise StoreError(
                f"{directory} has version {file.version}, this pliant reads version {VERSION}; {again}."
            )
        if xxhash.xxh3_64_intdigest(file.manifest) != file.xxh3:
            raise StoreError(f"{directory / PROGRAM} is damaged: it is not what was written; {again}.")
        return msgspec.json.decode(file.manifest, type=_Manifest)
    except OSError as error:
        raise StoreError(
            f"{directory} holds no compiled graph: {PROGRAM} cannot be read ({error.strerror}). Give a "
            "directory that `pliant compile MODEL.onnx -o DIR` wrote without --emit c."
        ) from error
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise StoreError(f"{directory / PROGRAM} is damaged ({error}); {again}.") from error


def _weights(directory: Path, manifest: _Manifest) -> dict[str, np.ndarray]:
    path = directory / WEIGHTS
    digest = xxhash.xxh3_64()
    try:
        with path.open("rb") as file:
            # Read, not mapped: checking must not make pages resident that runs do not need.
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            if file.tell() != manifest.weights_bytes or digest.intdigest() != manifest.weights_xxh3:
                raise StoreError(f"{path} is cut or changed; compile the model again.")
            data = map_file(file.fileno())
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
    whole = np.frombuffer(data, np.uint8)
    return {x: whole[at : at + manifest.sizes[x]] for x, at in manifest.offsets.items()}


def _kernels(directory: Path, manifest: _Manifest) -> dict[str, int]:
    addresses: dict[str, int] = {}
    for name, digest in manifest.objects.items():
        path = directory / OBJECTS / f"{name}.o"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error.strerror}.") from error
        if xxhash.xxh3_64_intdigest(data) != digest:
            raise StoreError(f"{path} is cut or changed; compile the model again.")
        addresses[name] = load(data)[name]
    return addresses
