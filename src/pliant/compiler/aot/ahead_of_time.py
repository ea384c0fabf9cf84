"""Compile a graph ahead of time: objects, a weights file and C source that needs no Python to run.

The directory holds `kernels/*.o` for the target, `NAME.c` (the table), `NAME.h`, `NAME.map` (exported
symbols), `NAME.safetensors` (weights, mapped at run time), `example.c`, `CMakeLists.txt`, and `libNAME.so` if
a C compiler for the target is available.
"""

import re
from ctypes import sizeof
from importlib.resources import files
from pathlib import Path
from string import Template

from pliant.compiler.aot.c_library import BuildResult, compiler_triple, link
from pliant.compiler.aot.c_source import escape_comment, format_array, format_bytes
from pliant.compiler.aot.compiled_files import draft_of, write_objects, write_weights
from pliant.compiler.aot.processor_features import PROCESSOR, feature_source, processor_header
from pliant.compiler.executable.encode_image import EncodedProgram, encode
from pliant.compiler.executable.image import Image
from pliant.errors import GraphError, InputError
from pliant.ir.executable import ARENA
from pliant.ir.graph import TensorType
from pliant.kernels.runtime.walker import PoolContext, UnitRange, walker_ir
from pliant.store.container import FileLayout

_MAX_RANK = 8


def write_c(image: Image, name: str, out: Path) -> BuildResult:
    """Write `image` as a C library called `name` into the new directory `out`, atomically.

    Raises InputError when `out` has other contents or `name` is not a C identifier; GraphError for a tensor
    of more than eight dimensions.
    """
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise InputError(f"{name!r} cannot be the name of a C library: take letters, digits and underscores.")
    with draft_of(out, f"{name}.map") as draft:
        _write(image, name, draft)
        library, reason = link(draft, name, image.target.isa, [f"{name}.c"])
    return BuildResult(out, out / library if library else None, reason)


def _write(image: Image, name: str, out: Path) -> None:
    isa = image.target.isa
    program = encode(image)
    write_objects(image, out, {"walker": walker_ir(isa)})
    layout, _ = write_weights(image, out / f"{name}.safetensors")
    known = {
        "name": name,
        "NAME": name.upper(),
        "title": name,
        "n_inputs": len(program.inputs),
        "n_outputs": len(program.outputs),
        "triple": compiler_triple(isa),
        "context_bytes": sizeof(PoolContext),
        "slot_bytes": sizeof(UnitRange),
        "features": feature_source(isa),
        "tables": _tables(program, layout, name),
    }
    for template, target in (
        ("runtime.c", f"{name}.c"),
        ("model.h", f"{name}.h"),
        ("example.c", "example.c"),
        ("CMakeLists.txt", "CMakeLists.txt"),
    ):
        text = (files("pliant.compiler.aot") / "c" / template).read_text(encoding="utf-8")
        if template == "runtime.c":
            text = f'#define _GNU_SOURCE\n#include "{name}.h"\n' + text
        (out / target).write_text(Template(text).substitute(known), encoding="utf-8")
    (out / PROCESSOR).write_text(processor_header(), encoding="utf-8")
    exported = "; ".join(f"{name}_{x}" for x in ("open", "run", "close", "inputs", "outputs"))
    (out / f"{name}.map").write_text(f"{{ global: {exported}; local: *; }};\n", encoding="utf-8")


def _tables(program: EncodedProgram, layout: FileLayout, name: str) -> str:
    """The model-specific part of the C source."""
    weights = dict(zip(program.weights, layout.offsets, strict=True))
    inputs, outputs = list(program.inputs), list(program.outputs)
    kernels_used = list(dict.fromkeys(row.kernel for row in program.rows))

    def where(space: str, offset: int) -> str:
        """space, index, offset"""
        if space == ARENA:
            return f"ARENA, 0, {offset}u"
        if space in weights:
            return f"WEIGHTS, 0, {weights[space] + offset}u"
        if space in program.inputs:
            return f"INPUT, {inputs.index(space)}, {offset}u"
        return f"OUTPUT, {outputs.index(space)}, {offset}u"

    addresses = [f"{{{a.at}u, {where(a.space, a.offset)}}}" for a in program.addresses]
    rows = [
        f"{{{kernels_used.index(r.kernel)}u, {r.arguments}u, {r.n_units}, {r.grain}}}"
        f" /* {escape_comment(r.label)} */"
        for r in program.rows
    ]
    faults = [f"{r.arguments + r.fault}u" for r in program.rows if r.fault is not None]
    copies = [f"{{{outputs.index(c.output)}, {where(c.space, c.offset)}}}" for c in program.copies]
    numbers = {
        "ARENA_BYTES": program.arena_bytes,
        "SCRATCH_BYTES": program.scratch_bytes,
        "WEIGHTS_BYTES": layout.n_bytes,
        "HEADER_BYTES": len(layout.header),
        "HEADER_HASH": _fnv1a(layout.header),
        "N_ROWS": len(rows),
        "N_ADDRESSES": len(addresses),
        "N_COPIES": len(copies),
        "N_FAULTS": len(faults),
    }
    lines = [f"#define {key} UINT64_C({number})" for key, number in numbers.items()]
    lines += [f"extern void {k}(void *, int64_t, int64_t, void *);" for k in kernels_used]
    used = ", ".join(kernels_used) or "0"
    lines.append(f"static void (*const KERNELS[])(void *, int64_t, int64_t, void *) = {{{used}}};")
    lines.append(
        "static const unsigned char ARGUMENTS[] = {" + format_bytes(program.arguments or b"\0") + "};"
    )
    lines.append(format_array("struct address ADDRESSES", addresses, "{0, 0, 0, 0}"))
    lines.append(format_array("struct row ROWS", rows, "{0, 0, 0, 0}"))
    lines.append(format_array("struct copy COPIES", copies, "{0, 0, 0, 0}"))
    lines.append(format_array("uint32_t FAULTS", faults, "0"))
    for kind, tensors in (("inputs", program.inputs), ("outputs", program.outputs)):
        described = [_describe(x, t) for x, t in tensors.items()] or ['{"", "", 0, {0}, 0}']
        lines.append(f"const struct {name}_tensor {name}_{kind}[] = {{{', '.join(described)}}};")
    return "\n".join(lines)


def _describe(tensor: str, type_: TensorType) -> str:
    if len(type_.shape) > _MAX_RANK:
        raise GraphError(f"{tensor!r} has {len(type_.shape)} dimensions; C output takes at most {_MAX_RANK}.")
    shape = ", ".join(map(str, type_.shape)) or "0"
    quoted = tensor.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{"{quoted}", "{type_.dtype}", {len(type_.shape)}, {{{shape}}}, {type_.n_bytes}u}}'


def _fnv1a(data: bytes) -> int:
    value = 14695981039346656037
    for byte in data:
        value = (value ^ byte) * 1099511628211 % (1 << 64)
    return value
