"""An executable as stable text: its calls, the place of every tensor, and the arena."""

from collections.abc import Iterator

from pliant.compiler.executable.assemble_image import ARENA, Image, Place
from pliant.compiler.executable.call import Call, Field, Ref
from pliant.compiler.executable.encode_image import arena_faults, arena_tensors


def image_text(image: Image) -> str:
    """A line for each tensor and each call, a further one for its arguments; equal images give equal text.

    Numbers of a call are those of its argument structure that are given; arrays end with their last number
    that is not zero. The values of constants are left out. What is placed in the arena stands with its bytes
    and the first and last call that it lives for, and no two share a byte while both live.
    """
    assert not list(arena_faults(arena_tensors(image), image.arena_bytes))
    target = image.target
    lines = [f"target {target.isa.name}{target.isa.features}, {target.n_threads} threads"]
    lines += [f"input {x} {type_}" for x, type_ in image.inputs.items()]
    lines += [f"output {y} {type_}" for y, type_ in image.outputs.items()]
    lines += [f"constant {x} {a.dtype}[{','.join(map(str, a.shape))}]" for x, a in image.constants.items()]
    lines += [f"packed {x} {p.n_bytes} B from {p.source or '(nothing)'}" for x, p in image.packed.items()]
    lines += [f"arena {image.arena_bytes} B, scratch {image.scratch_bytes} B a thread", *_tensors(image)]
    for i, call in enumerate(image.calls):
        lines += _call(i, call, image)
    lines += [f"copy {y} from {_place(image.places[x])}" for y, x in image.copies]
    return "\n".join(lines) + "\n"


def _tensors(image: Image) -> Iterator[str]:
    """What has a place of its own in the arena stands first, in the order of lifetimes; aliases follow."""
    lives = iter(image.tensors)
    for name, place in image.places.items():
        if place.space == ARENA and (life := next(lives, None)) is not None:
            yield f"tensor {name} {_place(place)} {life.n_bytes} B, calls {life.first} to {life.last}"
        elif place.space != name:
            yield f"alias {name} {_place(place)}"


def _call(number: int, call: Call, image: Image) -> Iterator[str]:
    about = f"{call.n_units} units, grain {call.grain}, scratch {call.scratch_bytes} B"
    if call.extent is not None:
        about += f", extent {' '.join(call.extent.fields) or '(units only)'}"
    yield f"call {number} {call.kernel.name}: {about}; {call.op} {call.label}".rstrip()
    yield "    " + " ".join(f"{name}={_field(value, image)}" for name, value in call.fields.items())


def _field(value: Field, image: Image) -> str:
    if isinstance(value, tuple):
        kept = list(value)
        while kept and (kept[-1] is None or kept[-1] == 0):
            kept.pop()
        return "[" + ",".join(_field(one, image) for one in kept) + "]"
    if isinstance(value, Ref):
        place = image.places[value.tensor]
        return _place(Place(place.space, place.offset + value.offset))
    return "null" if value is None else repr(value)


def _place(place: Place) -> str:
    return f"{place.space or 'arena'}+{place.offset}"
