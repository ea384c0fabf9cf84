"""The shipped models as C libraries: answers, memory, targets, and the first answer of a process.

    python bench/c_library.py [--quick]

Every answer is cold: layers are read with direct IO, and the file of the word table is dropped from the page
cache before each. The driver is bench/c_library.c. Data are read from PLIANT_DATA.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import pliant
from pliant import system
from pliant.api.compile_library import LibraryOptions, LibraryReport, compile_elastic, compile_recurrent
from pliant.api.model import RecurrentNetwork
from pliant.api.open_elastic import open_packed_store
from pliant.api.resolve import resolve, resolve_elastic
from pliant.compiler.executable.call import Target
from pliant.ir.bitwidths import FULL_BITS
from pliant.kernels.emit.isa import NEON, Isa, host_isa
from pliant.models.tokenizer import open_tokenizer
from pliant.run.array_sessions.recurrent_session import RecurrentSession
from pliant.run.submodel.engine import Engine
from pliant.settings import cache_folder, thread_count
from report import ROOT, Report, options

TARGETS_S = (0.010, 0.020, 0.050)
PRELOAD_BYTES = 200_000
LENGTH, WORDS = 64, 512
PAUSE_US = 2000
SLACK_BYTES = 3_000_000
KEPT, FIRST_S, TOLERANCE = 0.95, 0.050, 1e-6
DATA = Path(os.environ.get("PLIANT_DATA") or ROOT.parent / "shared" / "data")
DRIVER = ROOT / "bench" / "c_library.c"
_MEMORY = re.compile(r"(VmHWM|RssAnon|RssFile):\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class DriverAnswer:
    """One line of the driver."""

    end_us: int
    met: bool
    elapsed_us: int
    n_tokens: int
    numbers: np.ndarray
    bits: np.ndarray


@dataclass(frozen=True, slots=True)
class DriverRun:
    """A process of the driver: its answers, and its memory at the end in bytes."""

    answers: tuple[DriverAnswer, ...]
    memory: Mapping[str, int]
    first_s: float


@dataclass(frozen=True, slots=True)
class Library:
    """A library with its driver; `emulator` is the command prefix of an emulator."""

    report: LibraryReport
    driver: Path
    words: Path
    emulator: tuple[str, ...] = ()

    def bound_bytes(self, target_s: float | None = None) -> int:
        """The memory bound of a process: the working buffer counts with the size that the target's plans
        need.
        """
        sizes = self.report.sizes
        plans = [plan for plan in self.report.plans if plan.budget.target_s == target_s]
        working = max((plan.memory.working_bytes for plan in plans), default=sizes.working)
        return sizes.preload + working + sizes.arena + sizes.tables + SLACK_BYTES

    def run(self, texts: Sequence[str], target_s: float = 0.0, *, is_cold: bool = False) -> DriverRun:
        """Answer `texts`; with `is_cold`, no file of the directory is in the page cache at the start."""
        if is_cold:
            _drop_pages(self.report.output)
        command = [str(self.driver), str(self.report.output), str(PAUSE_US), str(round(target_s * 1e6))]
        start_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        done = subprocess.run(
            [*self.emulator, *command, str(self.words)], input="\n".join(texts),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        answers = tuple(self._answered(line) for line in lines if line[:1].isdigit())
        memory = {m[1]: 1024 * int(m[2]) for line in lines if (m := _MEMORY.match(line))}
        return DriverRun(answers, memory, (answers[0].end_us - start_us) / 1e6)

    def _answered(self, line: str) -> DriverAnswer:
        end_us, _, met, elapsed_us, n_tokens, _, *rest = line.split()
        n = sum("p" in word or "0x" in word for word in rest)
        numbers = np.array([float.fromhex(word) for word in rest[:n]], np.float32)
        bits = np.array(list(map(int, rest[n:])), int)
        return DriverAnswer(int(end_us), met == "1", int(elapsed_us), int(n_tokens), numbers, bits)


def main() -> None:
    chosen = options(__doc__.splitlines()[0])
    if shutil.which("cc") is None:
        raise SystemExit("no C compiler here: the libraries cannot be linked.")
    n_texts, n_starts = (40, 5) if chosen.quick else (200, 15)
    targets = ", ".join(f"{t * 1e3:.0f}" for t in TARGETS_S)
    bench = Report(
        "c_library",
        f"sst2 for {targets} ms with {PRELOAD_BYTES // 1000} KB preloaded, {n_texts} sentences of SST-2 in "
        f"a process for each target, {PAUSE_US / 1e3:.0f} ms between answers; imdb-lstm",
        chosen,
    )
    bench.note(
        "Memory is VmHWM of the whole process: its peak resident memory, including the C library and all "
        "code; the bound includes the working buffer at the size that the target's own plans need. "
        "The first answer is timed from before the start of the process, "
        "with no file of the directory in the page cache (cold), and again with all files in it."
    )
    with TemporaryDirectory(dir=cache_folder()) as folder:
        held = [*_elastic(bench, Path(folder), n_texts, n_starts), *_recurrent(bench, Path(folder), n_texts)]
        held += _arm(bench, Path(folder), 2 if chosen.quick else 8)
    bench.claim("cpu.c", f"{sum(held)} of {len(held)} parts", "all of its parts hold", all(held))
    bench.finish()


def _elastic(bench: Report, folder: Path, n_texts: int, n_starts: int) -> list[bool]:
    library = _built_elastic(folder / "sst2", host_isa())
    texts = _sentences(library, n_texts)
    rows, ran = [], {}
    for target_s in TARGETS_S:
        done = ran[target_s] = library.run(texts, target_s)
        ms = np.array([a.elapsed_us / 1e3 for a in done.answers])
        rows.append(
            {
                "target ms": 1e3 * target_s,
                "in time": f"{sum(a.met for a in done.answers)} of {len(ms)}",
                "median ms": float(np.median(ms)),
                "95 % ms": float(np.quantile(ms, 0.95)),
                "slowest ms": float(ms.max()),
                "memory MB": done.memory["VmHWM"] / 1e6,
                "bound MB": library.bound_bytes(target_s) / 1e6,
                "anonymous MB": done.memory["RssAnon"] / 1e6,
                "files MB": done.memory["RssFile"] / 1e6,
            }
        )
    bench.table("sst2, each target in a process of its own", rows)
    in_time = min(float(np.mean([a.met for a in done.answers])) for done in ran.values())
    memory = max(done.memory["VmHWM"] / library.bound_bytes(t) for t, done in ran.items())
    worst, equal, n = _differences([a for done in ran.values() for a in done.answers], texts * len(ran))
    _python_beside(bench, texts[:8])
    return [
        _said(bench, "cpu.c.answers", worst, f"<= {TOLERANCE:g} of the session's numbers at the same bits",
              worst <= TOLERANCE, f"{equal} of {n} equal to the bit"),
        _said(bench, "cpu.c.memory", memory, "<= preload + working + arena + tables + 3 MB", memory <= 1),
        _said(bench, "cpu.c.in_time", in_time, f">= {KEPT} at three targets, cold", in_time >= KEPT),
        _first(bench, library, texts, n_starts),
    ]  # fmt: skip


def _first(bench: Report, library: Library, texts: Sequence[str], n_starts: int) -> bool:
    """The table and the claim of processes that answer one text."""
    seconds = {
        name: [library.run(texts[i : i + 1], TARGETS_S[0], is_cold=is_cold).first_s for i in range(n_starts)]
        for name, is_cold in (("cold", True), ("in the page cache", False))
    }
    bench.table(
        f"From the start of a process to its first answer, target {TARGETS_S[0] * 1e3:.0f} ms",
        [
            {
                "files": name,
                "median ms": 1e3 * float(np.median(s)),
                "slowest ms": 1e3 * max(s),
                "starts": len(s),
            }
            for name, s in seconds.items()
        ],
    )
    slowest = max(seconds["cold"])
    return _said(
        bench, "cpu.c.first", slowest, f"<= {FIRST_S} s, the slowest start, cold", slowest <= FIRST_S
    )


def _recurrent(bench: Report, folder: Path, n_texts: int) -> list[bool]:
    """imdb-lstm beside its session."""
    library = _built_recurrent(folder / "imdb", host_isa())
    texts = _lines(DATA / "sst2" / "dev.tsv")[:n_texts]
    done = library.run(texts)
    worst, equal = _from_recurrent(done.answers, texts)
    memory = done.memory["VmHWM"] / library.bound_bytes()
    us = [a.elapsed_us for a in done.answers]
    row = {
        "texts": len(us),
        "median µs": float(np.median(us)),
        "memory MB": done.memory["VmHWM"] / 1e6,
        "bound MB": library.bound_bytes() / 1e6,
        "equal to the bit": equal,
    }
    bench.table("imdb-lstm", [row])
    note = f"{equal} of {len(us)} equal to the bit"
    return [
        _said(
            bench, "cpu.c.recurrent", worst, f"<= {TOLERANCE:g} of the session's", worst <= TOLERANCE, note
        ),
        _said(bench, "cpu.c.recurrent_memory", memory, "<= arena + tables + 3 MB", memory <= 1),
    ]


def _arm(bench: Report, folder: Path, n_texts: int) -> list[bool]:
    """Both models for 64-bit Arm under emulation: answers, not times. Empty if the tools are missing."""
    tools = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
    if any(shutil.which(tool) is None for tool in tools):
        bench.note(f"64-bit Arm: not measured, {' or '.join(tools)} is missing.")
        return []
    library = _built_elastic(folder / "arm", NEON)
    texts = _sentences(library, n_texts)
    done = library.run(texts)
    worst, _, n = _differences(done.answers, texts)
    recurrent = _built_recurrent(folder / "arm-imdb", NEON)
    reviews = _lines(DATA / "sst2" / "dev.tsv")[:n_texts]
    apart, _ = _from_recurrent(recurrent.run(reviews).answers, reviews)
    return [
        _said(bench, "cpu.c.aarch64", worst, "<= 1e-5 of the session here at the same bits, emulated",
              worst <= 1e-5, f"{n} texts; no times are taken there"),
        _said(bench, "cpu.c.aarch64_recurrent", apart, "<= 1e-5 of the session here, emulated",
              apart <= 1e-5, f"{len(reviews)} texts"),
    ]  # fmt: skip


def _from_recurrent(answers: Sequence[DriverAnswer], texts: Sequence[str]) -> tuple[float, int]:
    """Largest difference from imdb-lstm's session; answers equal to the bit."""
    with pliant.open("imdb-lstm", threads=thread_count(None)) as session:
        assert isinstance(session, RecurrentSession)
        wanted = [np.asarray(session(text).outputs["logits"][0]) for text in texts]
    worst = max(float(np.abs(a.numbers - w).max()) for a, w in zip(answers, wanted, strict=True))
    return worst, sum(np.array_equal(a.numbers, w) for a, w in zip(answers, wanted, strict=True))


def _differences(answers: Sequence[DriverAnswer], texts: Sequence[str]) -> tuple[float, int, int]:
    """Largest difference from a session's engine at the bits that ran; answers equal to the bit; answers."""
    worst, equal = 0.0, 0
    with (
        open_packed_store(resolve_elastic("sst2", "bench"), cache_folder()) as store,
        Engine(store, tokens=LENGTH) as engine,
    ):
        tokenizer = open_tokenizer(store.path, store.spec)
        shape = store.spec.n_layers, store.spec.n_heads
        for answer, text in zip(answers, texts, strict=True):
            bits = answer.bits.reshape(shape)
            assert set(np.unique(bits)) <= {0, 1, 2, 3, 4, 5, 6, FULL_BITS}
            layers = tuple(np.flatnonzero(bits.any(axis=1)).tolist())
            engine.hold(bits)
            want = engine.answer(tokenizer.encode(text), layers, int((bits[layers[0]] > 0).sum()))
            worst = max(worst, float(np.abs(answer.numbers - want).max()))
            equal += np.array_equal(answer.numbers, want)
    return worst, equal, len(answers)


def _python_beside(bench: Report, texts: Sequence[str]) -> None:
    """The memory of a process with Python's session for the same texts."""
    code = (
        "import sys, pliant\n"
        f"with pliant.open('sst2', latency={TARGETS_S[0]}, preload={PRELOAD_BYTES}) as s:\n"
        "    for line in sys.stdin: s(line)\n"
        "print(open('/proc/self/status').read())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(texts), capture_output=True, text=True, check=True
    )
    memory = {m[1]: 1024 * int(m[2]) for line in done.stdout.splitlines() if (m := _MEMORY.match(line))}
    bench.table(
        f"A process with Python's session, target {TARGETS_S[0] * 1e3:.0f} ms",
        [{"memory MB": memory["VmHWM"] / 1e6}],
    )


def _built_elastic(out: Path, isa: Isa) -> Library:
    model = resolve_elastic("sst2", "bench")
    report = compile_elastic(model, "sst2", _options(isa, TARGETS_S, LENGTH), out)
    return _with_driver(report, out / "store" / "embeddings.safetensors", isa)


def _built_recurrent(out: Path, isa: Isa) -> Library:
    model = resolve("imdb-lstm")
    assert isinstance(model, RecurrentNetwork)
    report = compile_recurrent(model, "imdb_lstm", _options(isa, (), WORDS), out)
    return _with_driver(report, out / "words.safetensors", isa)


def _options(isa: Isa, targets_s: tuple[float, ...], length: int) -> LibraryOptions:
    return LibraryOptions(
        targets_s, PRELOAD_BYTES if targets_s else 0, length, Target(isa, thread_count(None))
    )


def _with_driver(report: LibraryReport, words: Path, isa: Isa) -> Library:
    if report.library is None:
        raise SystemExit(f"{report.output} was not linked: {report.reason}.")
    is_native = isa.architecture == system.machine()
    compiler, emulator = ("cc", ()) if is_native else ("aarch64-linux-gnu-gcc", _EMULATOR)
    driver, out = report.output / "driver", report.output
    command = [
        compiler,
        "-O2",
        str(DRIVER),
        f"-I{out}",
        str(report.library),
        f"-Wl,-rpath,{out}",
        "-o",
        str(driver),
    ]
    subprocess.run(command, check=True)
    return Library(report, driver, words, emulator)


_EMULATOR = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")


def _sentences(library: Library, n: int) -> list[str]:
    """The first sentences that the library can read."""
    with open_packed_store(resolve_elastic("sst2", "bench"), cache_folder()) as store:
        tokenizer = open_tokenizer(store.path, store.spec)
        texts = _lines(DATA / "sst2" / "dev.tsv")
        return [text for text in texts if tokenizer.encode(text).n_tokens <= LENGTH][:n]


def _lines(path: Path) -> list[str]:
    if not path.is_file():
        raise SystemExit(f"no sentences at {path}; set PLIANT_DATA to the folder of data sets.")
    return [line.partition("\t")[0] for line in path.read_text().splitlines()[1:]]


def _drop_pages(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _said(bench: Report, id: str, value: float, bar: str, holds: bool, note: str = "") -> bool:
    bench.claim(id, value, bar, holds, note)
    return bool(holds)


if __name__ == "__main__":
    main()
