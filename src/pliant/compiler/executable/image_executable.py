"""Convert an image to an Executable: a value without code and weights that prints, parses and can be
checked.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256

import numpy as np

from pliant.compiler.executable.assemble_image import Image
from pliant.compiler.executable.call import Call, FieldValue, PackedConstant, Ref
from pliant.compiler.executable.encode_image import arena_tensors
from pliant.ir.executable import (
    ARENA,
    Address,
    Alias,
    Argument,
    Constant,
    Executable,
    ExecutableType,
    KernelCall,
    Scalar,
    to_number,
)
from pliant.ir.graph import TensorType


def image_executable(
    image: Image, sizes: Mapping[str, int] | None = None, *, with_digests: bool = False
) -> Executable:
    """The executable of an image; `sizes` are the current values of its open sizes.

    With digests, all weights are packed once, one after another.
    """
    target = image.target
    tensors = arena_tensors(image)
    own = {t.name for t in tensors}
    return Executable(
        target=f"{target.isa.name}{target.isa.features}",
        n_threads=target.n_threads,
        inputs=tuple((x, _type(t)) for x, t in image.inputs.items()),
        outputs=tuple((y, _type(t)) for y, t in image.outputs.items()),
        constants=tuple(_constants(image, with_digests)),
        arena_bytes=to_number(image.arena_bytes),
        scratch_bytes=to_number(image.scratch_bytes),
        tensors=tensors,
        aliases=tuple(
            Alias(x, Address(place.space, to_number(place.offset)))
            for x, place in image.places.items()
            if place.space != x and not (place.space == ARENA and x in own)
        ),
        calls=tuple(_call(call, image) for call in image.calls),
        copies=tuple((y, _address(Ref(x), image)) for y, x in image.copies),
        sizes=tuple((sizes or {}).items()),
    )


def _constants(image: Image, with_digests: bool) -> Iterator[Constant]:
    for x, array in image.constants.items():
        digest = _digest(np.ascontiguousarray(array)) if with_digests else ""
        yield Constant(x, array.nbytes, ExecutableType(str(array.dtype), array.shape), digest=digest)
    for x, packed in image.packed.items():
        digest = _digest(_fill(packed)) if with_digests else ""
        yield Constant(x, packed.n_bytes, source=packed.source, digest=digest)


def _fill(packed: PackedConstant) -> np.ndarray:
    memory = np.zeros(packed.n_bytes, np.uint8)  # bytes that kernels do not read are not filled
    packed.fill(memory)
    return memory


def _digest(array: np.ndarray) -> str:
    return sha256(array.tobytes()).hexdigest()


def _call(call: Call, image: Image) -> KernelCall:
    return KernelCall(
        call.kernel.name,
        to_number(call.n_units),
        to_number(call.grain),
        to_number(call.scratch_bytes),
        call.reads,
        call.writes,
        tuple((name, _argument(value, image)) for name, value in call.fields.items()),
        None if call.extent is None else call.extent.fields,
        call.op,
        call.label,
    )


def _argument(value: FieldValue, image: Image) -> Argument:
    if not isinstance(value, tuple):
        return _scalar(value, image)
    kept = [_scalar(one, image) for one in value]
    while kept and (kept[-1] is None or kept[-1] == 0):
        kept.pop()
    return tuple(kept)


def _scalar(value: int | float | Ref | None, image: Image) -> Scalar:
    if value is None:
        return None
    if isinstance(value, Ref):
        return _address(value, image)
    return float(value) if isinstance(value, float | np.floating) else to_number(value)


def _address(ref: Ref, image: Image) -> Address:
    place = image.places[ref.tensor]
    return Address(place.space, to_number(place.offset + ref.offset))


def _type(type_: TensorType) -> ExecutableType:
    return ExecutableType(type_.dtype, tuple(map(to_number, type_.shape)))
