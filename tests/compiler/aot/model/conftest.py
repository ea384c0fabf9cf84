"""C libraries of small models, and the compilers that link them."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from pliant.api.compile_library import LibraryOptions, LibraryReport, compile_elastic
from pliant.api.resolve import resolve_elastic
from pliant.compiler.aot.model.character_tables import character_tables, normalizer_steps
from pliant.compiler.executable.call import Target
from pliant.ir.device import DeviceProfile, LayerTime, Overhead
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing
from pliant.kernels.emit.isa import Isa, host_isa
from pliant.models.hf.checkpoint import open_checkpoint
from pliant.profile.measure_device import subject_of
from pliant.profile.profile_cache import save_profile
from pliant.store.build import build
from pliant.store.read import open_store

LENGTH = 24
TARGETS_S = (0.004, 0.2)
Build = Callable[..., LibraryReport]


@pytest.fixture(scope="session", autouse=True)
def characters_once() -> Iterator[None]:
    """The code points of a normalizer are tabulated once, and not for each library: that takes 1.3 s."""
    found: dict[str, object] = {}

    def known_steps(normalizer: Mapping[str, object] | None) -> object:
        key = json.dumps(normalizer, sort_keys=True)
        if key not in found:
            found[key] = normalizer_steps(normalizer)
        return found[key]

    module = "pliant.compiler.aot.model.text_tables"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{module}.normalizer_steps", known_steps)
        patch.setattr(f"{module}.character_tables", cache(character_tables))
        yield


@pytest.fixture(scope="session")
def linker() -> None:
    """Skips where nothing links."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")


def a_profile(store: Path, compute: str, read_Bps: float = 1e8) -> DeviceProfile:
    """A device on paper that the least target leaves a part of the tiny model in `store`."""
    line, small = Link(1e-4, read_Bps), Timing(1e-5, 2e-5)
    times = {width: Timing(2e-4 * width, 2e-4 * width) for width in (2, 4)}
    return DeviceProfile(
        cpu="paper", n_threads=2, memory_bytes=1, frequency_Hz=None, frequency_reason="on paper",
        subject=subject_of(open_store(store), compute), io_method="none", reads=(), disk=line, disk_p95=line,
        layers=tuple(LayerTime(n, m, time, time) for n in (8, 24) for m, time in times.items()),
        overheads=tuple(Overhead(n, small, small, small) for n in (8, 24)),
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny_stores(
    tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`tiny_stores(family, is_classifier, **changes)` is a packed random model; never write into it."""
    made: dict[str, Path] = {}

    def store(family: str = "bert", is_classifier: bool = True, **changes: object) -> Path:
        directory = tiny_model(family, is_classifier, **changes)
        if str(directory) not in made:
            out = tmp_path_factory.mktemp("stores") / "store"
            made[str(directory)] = build(open_checkpoint(directory), out)
        return made[str(directory)]

    return store


@pytest.fixture(scope="session")
def build_library(linker: None, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """`build_library(store, ...)` writes and links a store as a C library, under the targets TARGETS_S."""

    def built(
        store: Path,
        *,
        isa: Isa | None = None,
        preload_bytes: int = 0,
        targets_s: tuple[float, ...] = TARGETS_S,
        compute: str = "fp32",
        read_Bps: float = 1e8,
    ) -> LibraryReport:
        folder = tmp_path_factory.mktemp("library")
        profile = save_profile(folder / "profile.json", a_profile(store, compute, read_Bps))
        options = LibraryOptions(
            targets_s=targets_s,
            preload_bytes=preload_bytes,
            length=LENGTH,
            target=Target(isa or host_isa(), 2),
            compute=compute,  # type: ignore[arg-type]
            profile=profile,
        )
        report = compile_elastic(resolve_elastic(str(store), "test"), "tiny", options, folder / "out")
        assert report.library is not None, report.reason
        return report

    return built


def compiled_program(report: LibraryReport, source: Path, compiler: str = "cc") -> Path:
    """A C program that is linked with a library."""
    program = report.output.parent / source.stem
    command = [
        compiler,
        "-Wall",
        "-Wextra",
        "-Werror",
        str(source),
        f"-I{report.output}",
        str(report.library),
    ]
    subprocess.run([*command, f"-Wl,-rpath,{report.output}", "-o", str(program)], check=True)
    return program
