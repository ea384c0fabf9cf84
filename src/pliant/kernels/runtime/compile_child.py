"""Compile LLVM IR to ELF objects in a separate, short-lived process.

Run as a script, it reads one JSON request from standard input and writes each object to standard output as
eight bytes of little-endian length and the bytes. The 60 MB of LLVM are used only in the child.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

LENGTH_BYTES = 8

T = TypeVar("T")


def compile_objects(texts: Sequence[str], cpu: str, features: str, triple: str) -> list[bytes]:
    """One position-independent object per IR module, for machines of `triple`, which may differ from this
    one.

    Raises RuntimeError with LLVM's message on invalid IR.
    """
    return _compiled(texts, cpu, features, triple, lambda machine, module: machine.emit_object(module))


def compile_assembly(texts: Sequence[str], cpu: str, features: str, triple: str = "") -> list[str]:
    """The same code as assembly text."""
    return _compiled(texts, cpu, features, triple, lambda machine, module: machine.emit_assembly(module))


def _compiled(
    texts: Sequence[str], cpu: str, features: str, triple: str, emit: Callable[[Any, Any], T]
) -> list[T]:
    import llvmlite.binding as llvm

    if triple.partition("-")[0] == llvm.get_process_triple().partition("-")[0]:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(triple)
    machine = target.create_target_machine(cpu=cpu, features=features, opt=3, reloc="pic", codemodel="small")
    # The generators already unroll and vectorise; doing it again in LLVM only costs time and code size.
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    options.loop_vectorization = False
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    made = []
    for text in texts:
        module = llvm.parse_assembly(text)
        module.triple = triple
        module.verify()
        builder.getModulePassManager().run(module, builder)
        made.append(emit(machine, module))
    return made


def main() -> None:
    """Answer one request: `{"texts": [...], "cpu": "...", "features": "...", "triple": "..."}`."""
    request = json.load(sys.stdin)
    for data in compile_objects(request["texts"], request["cpu"], request["features"], request["triple"]):
        sys.stdout.buffer.write(len(data).to_bytes(LENGTH_BYTES, "little") + data)


if __name__ == "__main__":
    main()
