"""Read runs of shards into the caller's memory, bypassing the page cache, and check each slice.

Opening reads the manifest and the small files; weights are read run by run. Reads and XXH3 both release
the GIL, so a reading thread does not block the computing thread.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from pliant.arrays import UInt8
from pliant.errors import StoreError
from pliant.ir.program import FULL, SliceRun
from pliant.models.slice_shapes import SliceGeometry, slice_geometry
from pliant.models.spec import ModelSpec
from pliant.store.coding.encode_layer import ResidentLayer
from pliant.store.container import BLOCK
from pliant.store.manifest import PART_NAMES, FileEntry, Manifest, read_manifest
from pliant.store.store_files import (
    Embeddings,
    HeadWeights,
    open_embeddings,
    open_head,
    open_resident,
    read_checked,
)
from pliant.system import drop_cached, has_direct_reads, open_direct, private_memory, read_into

__all__ = ["FULL", "ReadExtent", "ResidentLayer", "SliceRun", "Store", "aligned_buffer", "open_store"]


@dataclass(frozen=True, slots=True)
class ReadExtent:
    """One read: `n_bytes` from `offset` of a layer's file, both multiples of the block size, and the
    positions of its runs.

    The payload of `runs[i]` begins `starts[i]` bytes into the extent.
    """

    layer: int
    offset: int
    n_bytes: int
    runs: tuple[SliceRun, ...]
    starts: tuple[int, ...]


class Store:
    """An open store. A context manager: leaving it closes the files; arrays that it returned stay valid.

    `is_direct`: reads bypass the page cache. On a file system without direct IO (tmpfs), pages are dropped
    before each read as far as it allows, and such reads do not count as cold. Reads are safe from several
    threads at once.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest
        self.spec: ModelSpec = manifest.spec
        self.geometry: SliceGeometry = slice_geometry(manifest.spec)
        self._hashes = tuple(
            {p.part: tuple(int(h, 16) for h in p.xxh3) for p in layer.parts} for layer in manifest.layers
        )
        self._parts = tuple({p.part: p for p in layer.parts} for layer in manifest.layers)
        self._resident = open_resident(path, manifest)
        self.embeddings: Embeddings = open_embeddings(path, manifest)
        self.head: HeadWeights = open_head(path, manifest)
        read_checked(path, manifest.file("tokenizer.json"))
        self.is_direct = has_direct_reads(path)
        self._files: list[int] = []
        try:
            for layer in manifest.layers:
                self._files.append(self._open(path / layer.file))
        except StoreError:
            self.close()
            raise

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the layers' files; reading afterwards is an error."""
        while self._files:
            os.close(self._files.pop())

    @property
    def identity(self) -> str:
        """SHA-256 that names the content of all files but the manifest."""
        return self.manifest.identity

    @property
    def resident_bytes(self) -> int:
        """Bytes of codebooks, outliers, biases and norms of all layers, read at open and kept."""
        return sum(layer.n_bytes for layer in self._resident)

    def resident(self, layer: int) -> ResidentLayer:
        """The part of `layer` that stays in memory."""
        return self._resident[layer]

    def run_bytes(self, run: SliceRun) -> int:
        """Bytes of the run's payload."""
        return run.count * self._parts[run.layer][run.part].slice_bytes if self._covers(run) else 0

    def plan_reads(self, runs: Sequence[SliceRun]) -> tuple[ReadExtent, ...]:
        """The fewest reads that bring in `runs`: runs that touch or overlap on disk are merged.

        Reads are whole blocks, in order of layer and offset. A run whose slices are not adjacent is split.
        `store/coding/shard_order.py` defines which slices are adjacent.
        """
        spans = sorted({span for run in runs for span in self._spans(run)})
        merged: list[list[_ByteSpan]] = []
        end, layer = -1, -1
        for span in spans:
            if span.layer != layer or _floor(span.start) > end:
                merged.append([])
                end, layer = -1, span.layer
            merged[-1].append(span)
            end = max(end, _ceil(span.stop))
        return tuple(_extent(group) for group in merged)

    def read(self, run: SliceRun, payload: UInt8[np.ndarray, " n"]) -> None:
        """Read `run` into `payload`, `run_bytes(run)` long, its slices one after the other.

        It copies through a temporary buffer; `read_extent` does not. Raises StoreError naming file, layer,
        part and slice when the bytes are short or wrong.
        """
        for extent in self.plan_reads((run,)):
            buffer = aligned_buffer(extent.n_bytes)
            for piece, start in zip(extent.runs, self.read_extent(extent, buffer), strict=True):
                n_bytes = self.run_bytes(piece)
                at = (piece.first - run.first) * (n_bytes // piece.count)
                payload[at : at + n_bytes] = buffer[start : start + n_bytes]

    def read_extent(
        self, extent: ReadExtent, buffer: UInt8[np.ndarray, " n"], at: int = 0
    ) -> tuple[int, ...]:
        """Read all runs of `extent` at once and check them; returns the offset in `buffer` of each run's
        payload.

        The data are written to `buffer` from byte `at` (a multiple of 4096 of an aligned buffer). Slice i of
        a run is the i-th of equal pieces. Raises StoreError as `read` does.
        """
        target = buffer[at : at + extent.n_bytes]
        if target.size < extent.n_bytes or target.ctypes.data % BLOCK:
            raise StoreError(
                f"a read of {extent.n_bytes} bytes needs as many in a buffer aligned to {BLOCK}; "
                f"there are {target.size} at address {target.ctypes.data:#x}. Use aligned_buffer()."
            )
        self._fill(extent, target)
        starts = tuple(at + start for start in extent.starts)
        for run, start in zip(extent.runs, starts, strict=True):
            self._check(run, buffer[start : start + self.run_bytes(run)])
        return starts

    def _fill(self, extent: ReadExtent, target: np.ndarray) -> None:
        if not self._files:
            raise StoreError(f"the store {self.path} is closed.")
        name = self.manifest.layers[extent.layer].file
        fd, done = self._files[extent.layer], 0
        try:
            if not self.is_direct:
                drop_cached(fd, extent.offset, extent.n_bytes)
            while done < extent.n_bytes:
                n = read_into(fd, target[done:].data, extent.offset + done)
                if n == 0:
                    break
                done += n
        except OSError as error:
            raise StoreError(
                f"{name} cannot be read at byte {extent.offset + done}: {error.strerror}."
            ) from error
        if done < extent.n_bytes:
            run = extent.runs[0]
            raise StoreError(
                f"{name} is truncated: layer {run.layer}, {PART_NAMES[run.part]}, slices {run.first} to "
                f"{run.first + run.count - 1} end past its {extent.offset + done} bytes; build it again."
            )

    def _check(self, run: SliceRun, payload: np.ndarray) -> None:
        expected = self._hashes[run.layer][run.part]
        size = self._parts[run.layer][run.part].slice_bytes
        data = payload.data
        for i in range(run.count):
            if xxhash.xxh3_64_intdigest(data[i * size : (i + 1) * size]) != expected[run.first + i]:
                raise StoreError(
                    f"{self.manifest.layers[run.layer].file} is damaged: layer {run.layer}, "
                    f"{PART_NAMES[run.part]}, slice {run.first + i} does not match its XXH3; build it again."
                )

    def _spans(self, run: SliceRun) -> Iterator["_ByteSpan"]:
        """The payload of `run` in its file: one span for each contiguous piece."""
        self._covers(run)
        part = self._parts[run.layer][run.part]
        size, first, end = part.slice_bytes, run.first, run.first + run.count
        for s in range(run.first, end):
            if s + 1 == end or part.offsets[s + 1] != part.offsets[s] + size:
                piece = SliceRun(run.layer, run.part, first, s + 1 - first)
                yield _ByteSpan(run.layer, part.offsets[first], part.offsets[s] + size, piece)
                first = s + 1

    def _covers(self, run: SliceRun) -> bool:
        if not 0 <= run.layer < self.spec.n_layers or run.part not in self._parts[run.layer]:
            raise StoreError(
                f"layer {run.layer}, part {run.part} is not in the store {self.path}, which offers "
                f"{self.spec.n_layers} layers at {','.join(map(str, self.manifest.bits))} bits."
            )
        if run.first < 0 or run.count < 0 or run.first + run.count > self.spec.n_heads:
            raise StoreError(
                f"slices {run.first} to {run.first + run.count - 1} are not in 0..{self.spec.n_heads - 1}."
            )
        return True

    def _open(self, path: Path) -> int:
        try:
            if self.is_direct and (fd := open_direct(path)) is not None:
                return fd
            self.is_direct = False
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            raise StoreError(f"{path.name} of {path.parent} cannot be opened: {error.strerror}.") from error


def open_store(path: Path) -> Store:
    """Open the store at `path`: manifest, sizes of all files, and the small files, which are checked and
    read.

    Raises StoreError naming the file when one is missing, of the wrong size or damaged, and when the
    manifest is of a newer version.
    """
    if ".building-" in path.name:
        raise StoreError(f"{path} is a build that did not end; build the store again.")
    manifest = read_manifest(path)
    for entry in manifest.files:
        _check_size(path, entry)
    return Store(path, manifest)


def aligned_buffer(n_bytes: int) -> UInt8[np.ndarray, " n"]:
    """Zeroed private memory for reads: at least `n_bytes`, in whole blocks, aligned to one.

    A forked child finds zeros in it.
    """
    return np.frombuffer(private_memory(max(BLOCK, _ceil(n_bytes))), np.uint8)


def _check_size(store: Path, entry: FileEntry) -> None:
    try:
        n_bytes = (store / entry.name).stat().st_size
    except OSError as error:
        raise StoreError(f"{entry.name} of {store} is missing ({error.strerror}); build it again.") from error
    if n_bytes != entry.n_bytes:
        raise StoreError(
            f"{entry.name} of {store} has {n_bytes} bytes, but the manifest says {entry.n_bytes}; "
            "it was cut or changed: build the store again."
        )


class _ByteSpan(NamedTuple):
    """A contiguous run, from byte `start` to `stop` of its layer's file; sorts by place."""

    layer: int
    start: int
    stop: int
    run: SliceRun


def _extent(group: Sequence[_ByteSpan]) -> ReadExtent:
    offset = _floor(group[0].start)
    end = max(_ceil(span.stop) for span in group)
    return ReadExtent(
        group[0].layer,
        offset,
        end - offset,
        tuple(span.run for span in group),
        tuple(span.start - offset for span in group),
    )


def _floor(n: int) -> int:
    return n - n % BLOCK


def _ceil(n: int) -> int:
    return n + -n % BLOCK
