"""Encode an image as numbers: argument bytes, the positions of addresses in them, and table rows.

A session fills in the addresses; compiled directories and C source store the encoded form.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.call import Call, Kernel, Ref
from pliant.ir.executable import ARENA, ArenaTensor, to_number
from pliant.ir.graph import TensorType
from pliant.ir.symbolic import is_symbolic, plain_value

_ALIGNMENT = 16
FAULT = "fault"
"""The argument field into which a kernel that reads indices writes an index that is out of range."""


@dataclass(frozen=True, slots=True)
class ArgumentAddress:
    """Bytes `at`..`at + 7` of the arguments hold the address of byte `offset` of `space`."""

    at: int
    space: str
    offset: int


@dataclass(frozen=True, slots=True)
class CallEntry:
    """One entry of the native table; its arguments begin at byte `arguments`. The other fields are those of a
    Call.

    A kernel that reads indices writes an index out of range to byte `fault` of its arguments
    (kernels/move/index_gather.py).
    """

    kernel: str
    arguments: int
    n_units: int
    grain: int
    label: str
    op: str = ""
    flops: int = 0
    n_bytes: int = 0
    fault: int | None = None


@dataclass(frozen=True, slots=True)
class OutputCopy:
    """After the calls, `output` is copied from byte `offset` of `space`."""

    output: str
    space: str
    offset: int


@dataclass(frozen=True, slots=True)
class EncodedProgram:
    """A whole program. Spaces are the arena, the inputs, the outputs, and the weights by name.

    `extents` are the positions of the extent in the arguments, as a 64-bit number. `numbers` are argument
    numbers that depend on open sizes: first byte, bytes, and the symbolic number. `tensors` are the arena's
    tensors, kept for checking.
    """

    arguments: bytes
    addresses: tuple[ArgumentAddress, ...]
    rows: tuple[CallEntry, ...]
    copies: tuple[OutputCopy, ...]
    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    weights: tuple[str, ...]
    arena_bytes: int
    scratch_bytes: int
    n_threads: int
    extents: tuple[int, ...] = ()
    numbers: tuple[tuple[int, int, int], ...] = ()
    tensors: tuple[ArenaTensor, ...] = ()


def encode(image: Image) -> EncodedProgram:
    """The image's calls as bytes and rows, in order."""
    blob = bytearray()
    addresses: list[ArgumentAddress] = []
    rows: list[CallEntry] = []
    extents: list[int] = []
    numbers: list[tuple[int, int, int]] = []
    for call in image.calls:
        blob += bytes(-len(blob) % _ALIGNMENT)
        start = len(blob)
        data, refs, open_ = encode_arguments(call)
        blob += data
        numbers += [(start + at, n_bytes, number) for at, n_bytes, number in open_]
        for at, ref in refs:
            place = image.places[ref.tensor]
            addresses.append(ArgumentAddress(start + at, place.space, place.offset + ref.offset))
        extents += [start + at for at in _extents(call)]
        about = call.label, call.op, call.flops, call.n_bytes
        fault = getattr(call.layout, FAULT).offset if hasattr(call.layout, FAULT) else None
        rows.append(CallEntry(call.kernel.name, start, call.n_units, call.grain, *about, fault))
    copies = []
    for output, source in image.copies:
        place = image.places[source]
        copies.append(OutputCopy(output, place.space, place.offset))
    return EncodedProgram(
        arguments=bytes(blob),
        addresses=tuple(addresses),
        rows=tuple(rows),
        copies=tuple(copies),
        inputs=image.inputs,
        outputs=image.outputs,
        weights=(*image.constants, *image.packed),
        arena_bytes=image.arena_bytes,
        scratch_bytes=image.scratch_bytes,
        n_threads=image.target.n_threads,
        extents=tuple(extents),
        numbers=tuple(numbers),
    )


def arena_tensors(image: Image) -> tuple[ArenaTensor, ...]:
    """The tensors with memory of their own in an image's arena, each before its aliases, ordered as the
    lifetimes.
    """
    placed = [(name, place.offset) for name, place in image.places.items() if place.space == ARENA]
    return tuple(
        ArenaTensor(name, plain_value(offset), to_number(life.n_bytes), life.first, life.last)
        for (name, offset), life in zip(placed, image.tensors, strict=False)
    )


def image_kernels(image: Image) -> dict[str, Kernel]:
    """Every kernel the image calls, once."""
    return {call.kernel.name: call.kernel for call in image.calls}


def encode_arguments(call: Call) -> tuple[bytes, list[tuple[int, Ref]], list[tuple[int, int, int]]]:
    """The bytes of a call's argument structure, with zeros in place of addresses, and the position of each
    address.

    Numbers that depend on open sizes have their current values and are also listed: byte, bytes, number.
    """
    structure = call.layout()
    refs: list[tuple[int, Ref]] = []
    numbers: list[tuple[int, int, int]] = []
    for name, value in call.fields.items():
        owner, last = _owner(structure, name)
        at = _field_offset(structure, name)
        if isinstance(value, tuple):
            array = getattr(owner, last)
            for i, number in enumerate(value):
                if isinstance(number, Ref):
                    refs.append((at + i * ctypes.sizeof(ctypes.c_void_p), number))
                elif is_symbolic(number):
                    n_bytes = ctypes.sizeof(array) // len(array)
                    numbers.append((at + i * n_bytes, n_bytes, cast(int, number)))
                    array[i] = plain_value(cast(int, number))
                else:
                    array[i] = number
        elif isinstance(value, Ref):
            refs.append((at, value))
        elif is_symbolic(value):
            numbers.append((at, getattr(type(owner), last).size, cast(int, value)))
            setattr(owner, last, plain_value(cast(int, value)))
        else:
            setattr(owner, last, value)
    return bytes(structure), refs, numbers


def _extents(call: Call) -> list[int]:
    """The positions of the extent in the arguments."""
    structure = call.layout()
    return [] if call.extent is None else [_field_offset(structure, name) for name in call.extent.fields]


def _field_offset(structure: ctypes.Structure, name: str) -> int:
    """The offset of a dotted field name."""
    owner, last = _owner(structure, name)
    offset: int = getattr(type(owner), last).offset
    return ctypes.addressof(owner) - ctypes.addressof(structure) + offset


def _owner(structure: ctypes.Structure, name: str) -> tuple[ctypes.Structure, str]:
    """The structure that has the last part of a dotted field name."""
    *path, last = name.split(".")
    for part in path:
        structure = getattr(structure, part)
    return structure, last
