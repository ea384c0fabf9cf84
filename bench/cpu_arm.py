"""[cpu.arm] 64-bit Arm under emulation: the README's examples beside this machine, and all of tests/kernels.

    python bench/cpu_arm.py [--quick]

Runs `scripts/arm`, which builds an AArch64 Python for qemu-user, with every NEON row that the emulated
processor has. No times are measured, because emulation does not represent them. Then `pliant demo` there.
"""

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pliant.kernels.emit.isa import ISAS
from report import ROOT, Report, options

ARM, ANSWERS = ROOT / "scripts" / "arm", ROOT / "scripts" / "arm_answers.py"
QUICK = "tests/kernels/emit"
FORKS = "tests/kernels/runtime/test_thread_pool.py"
"""Run in one process: assertions of qemu-user 7.2 fail in a child forked beside threads of pytest-xdist."""
EQUAL, ROUNDED = 1e-5, "int8"


def main() -> None:
    chosen = options(__doc__ or "")
    if shutil.which("qemu-aarch64") is None:
        raise SystemExit("no qemu-aarch64 here: install Debian's qemu-user.")
    rows = ", ".join(isa.name + isa.features for isa in ISAS if isa.architecture == "aarch64")
    report = Report("cpu_arm", f"qemu-user, `-cpu max`, rows {rows}", chosen)
    with TemporaryDirectory(prefix="pliant-bench-") as name:
        folder = Path(name)
        if not chosen.quick:
            _examples(report, folder)
        _kernels(report, folder, QUICK if chosen.quick else "tests/kernels")
        if not chosen.quick:
            _demo(report, folder)
    report.finish()


def _examples(report: Report, folder: Path) -> None:
    here = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "PLIANT_CACHE": str(folder / "x86")}
    _run([sys.executable, str(ANSWERS), str(folder), "here"], here)
    _run([str(ARM), str(ANSWERS), str(folder), "arm"], {"PLIANT_CACHE": str(folder / "arm")})
    rows, worst = [], 0.0
    with np.load(folder / "here.npz") as ours, np.load(folder / "arm.npz") as theirs:
        for name in ours.files:
            own, other = (x[name].reshape(len(x[name]), -1) for x in (ours, theirs))
            apart = np.abs(own - other).max(axis=1) / np.abs(own).max()
            rows.append({"example": name, "median": float(np.median(apart)), "worst": float(apart.max())})
            worst = max(worst, float(np.median(apart) if ROUNDED in name else apart.max()))
    report.table("Logits on Arm beside x86-64, difference over the largest logit", rows)
    note = "in int8 the median: another order of a sum may round an activation to the next integer"
    report.claim("cpu.arm", worst, f"the README's examples equal to {EQUAL:g}", worst <= EQUAL, note)


def _kernels(report: Report, folder: Path, tests: str) -> None:
    every: dict[str, tuple[str, ...]] = {"most.xml": ("-n", "2", tests, f"--ignore={FORKS}")}
    if FORKS.startswith(tests):
        every["forks.xml"] = ("-o", "addopts=", "-p", "no:xdist", FORKS)
    for name, given in every.items():
        command = [str(ARM), "-m", "pytest", "-q", *given, f"--junitxml={folder / name}"]
        done = _run(command, {}, is_checked=False)
        if not (folder / name).exists():
            raise SystemExit(f"the tests did not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failed: list[str] = []
    for case in (one for name in every for one in ElementTree.parse(folder / name).iter("testcase")):
        outcome = next(({"failure": "failed", "error": "failed"}.get(x.tag, x.tag) for x in case), "passed")
        module = (case.get("classname") or case.get("name") or "").split(".")  # a skipped file has no class
        counts[".".join(module[:3])][outcome] += 1
        if outcome == "failed":
            failed.append(f"{'.'.join(module)}::{case.get('name')}")
    report.table(
        f"{tests} under emulation",
        [
            {"tests": name, "passed": n["passed"], "failed": n["failed"], "skipped": n["skipped"]}
            for name, n in sorted(counts.items())
        ],
    )
    total = sum(counts.values(), Counter())
    report.claim(
        "cpu.arm",
        f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped",
        f"all of {tests} passes",
        not failed and total["passed"] > 0,
        ", ".join(failed),
    )


def _demo(report: Report, folder: Path) -> None:
    done = _run([str(ARM), "-m", "pliant", "demo"], {"PLIANT_CACHE": str(folder / "demo")}, is_checked=False)
    last = (done.stdout.strip() or done.stderr.strip() or "no output").splitlines()[-1]
    report.claim(
        "cpu.arm", f"exit status {done.returncode}", "`pliant demo` runs there", not done.returncode, last
    )


def _run(
    command: list[str], changes: dict[str, str], *, is_checked: bool = True
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | changes, capture_output=True, text=True, check=is_checked
    )


if __name__ == "__main__":
    main()
