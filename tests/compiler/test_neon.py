"""Every kernel family's code for 64-bit Arm, run under emulation, answers what this machine's session does.

All graphs are one library and one emulated process, which is what keeps this short.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from pliant.compiler.aot.ahead_of_time import write_c
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.image import Image, make_image
from pliant.ir.graph import Graph
from pliant.kernels.emit.isa import NEON, NEON_DOT, NEON_I8MM, vector_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.array_stage import open_image
from pliant.run.graph.model_options import ModelOptions
from tests.compiler.compare import assert_same
from tests.compiler.family_models import MODELS, feeds_of, model_of
from tests.compiler.union import union

_CC, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_INT8 = [name for name in MODELS if "int8" in name]
# The plain row on a processor without half-precision arithmetic and dot products, int8 on one with all.
_ROWS = {
    "neon": (NEON, "cortex-a72", list(MODELS)),
    "neon-dot": (NEON_DOT, "max", _INT8),
    "neon-i8mm": (NEON_I8MM, "max", _INT8),
}


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    """The models after all passes, so that what runs on Arm is what pliant makes of a user's file."""
    library = Library(vector_isa())
    found = {}
    with ThreadPool(1, library) as pool:
        for name in MODELS:
            model = OnnxSession(model_of(name), pool, library, ModelOptions({}), ahead=False)
            found[name] = model.graph(feeds_of(name))
    return found


@pytest.fixture(scope="module")
def answers(graphs: dict[str, Graph]) -> dict[str, np.ndarray]:
    """What the session here makes of all of them."""
    isa, whole = vector_isa(), union(graphs)
    library = Library(isa)
    with ThreadPool(1, library) as pool:
        return open_image(make_image(whole, Target(isa)), pool, library).run(_feeds(whole.inputs))


@pytest.fixture(scope="module")
def on_arm(
    graphs: dict[str, Graph], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], dict[str, np.ndarray]]:
    """`on_arm(row)`: what the emulated processor makes of that row's models."""
    for tool in (_CC, _EMULATOR):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")

    @cache
    def run(row: str) -> dict[str, np.ndarray]:
        isa, cpu, names = _ROWS[row]
        whole = union({name: graphs[name] for name in names})
        return _emulated(make_image(whole, Target(isa, 2)), cpu, tmp_path_factory.mktemp(row) / "c")

    return run


def _emulated(image: Image, cpu: str, folder: Path) -> dict[str, np.ndarray]:
    emitted = write_c(image, "all", folder)
    assert emitted.library, emitted.reason
    command = [_CC, "-std=gnu11", "example.c", "-L.", "-lall", "-Wl,-rpath,$ORIGIN", "-o", "example"]
    subprocess.run(command, cwd=folder, check=True)
    feeds = _feeds(image.inputs)
    for i, array in enumerate(feeds.values()):
        (folder / f"{i}.bin").write_bytes(np.ascontiguousarray(array).tobytes())
    command = [_EMULATOR, "-cpu", cpu, "-L", f"/usr/{_CC.removesuffix('-gcc')}", "./example"]
    command += ["all.safetensors", *(f"{i}.bin" for i in range(len(feeds)))]
    printed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    found, at = {}, 0
    for name, type_ in image.outputs.items():
        found[name] = np.frombuffer(printed[at : at + type_.n_bytes], type_.numpy).reshape(type_.shape)
        at += type_.n_bytes
    assert at == len(printed)
    return found


def _feeds(inputs: Iterable[str]) -> dict[str, np.ndarray]:
    feeds: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(x.partition(":")[0] for x in inputs):
        feeds |= {f"{name}:{x}": array for x, array in feeds_of(name).items()}
    return {x: feeds[x] for x in inputs}


@pytest.mark.parametrize(("row", "name"), [(row, name) for row in _ROWS for name in _ROWS[row][2]])
def test_arm_answers_as_this_machine_does(
    row: str, name: str, on_arm: Callable[[str], dict[str, np.ndarray]], answers: dict[str, np.ndarray]
) -> None:
    """To the last bit where numbers are whole; floats to what sums in another order may differ."""
    outputs = [x for x in answers if x.startswith(f"{name}:")]
    assert outputs
    for x in outputs:
        assert_same(on_arm(row)[x], answers[x], x)
