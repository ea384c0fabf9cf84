"""The report of every bench: machine, commit, workload, rows, claims."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pliant.kernels.emit.isa import host_isa

ROOT = Path(__file__).resolve().parent.parent
_COMPILER = ("kernels", "compiler", "models", "run")
_MEASURES = {
    "batch": (*_COMPILER, "plan", "store"),
    "plan": ("plan", "ir"),
    "store": ("store", "models"),
    "local": ("kernels", "compiler", "run"),
    "c_library": (*_COMPILER, "api", "plan", "store"),
    "compile": _COMPILER,
    "compile_folded": _COMPILER,
    "compile_int8": _COMPILER,
    "int8_products": _COMPILER,
    "int8_errors": (*_COMPILER, "store"),
    "int8_outliers": ("kernels", "store"),
    "cpu_arm": ("kernels",),
    "amx": _COMPILER,
    "one_row": ("kernels", "store"),
    "shapes": (*_COMPILER, "ir"),
    "vision": _COMPILER,
    "vision_networks": _COMPILER,
    "fluidml": _COMPILER,
    "recurrent": _COMPILER,
    "regressions": (*_COMPILER, "api", "ir", "plan", "profile", "route", "store"),
    "comm": ("cluster",),
    "hepti": ("cluster", "plan", "ir", "kernels", "compiler"),
    "hepti_faults": ("cluster",),
    "hepti_scale": ("cluster", "plan", "ir"),
    "hepti_solve": ("plan", "ir"),
    "crime": ("route",),
    "crime_attention": ("route", "serve", "run", "plan"),
    "crime_decide": ("route",),
    "crime_faults": ("route", "serve"),
    "crime_node": ("route", "serve"),
    "crime_real": ("route", "serve"),
    "serve_page": ("serve",),
    "serve_soak": ("serve", "route", "run"),
    "slo_scale": ("route", "ir"),
    "slo_simulated": ("route", "ir"),
    "slo": ("route", "serve", "api", "cluster", "plan", "run"),
}
"""Packages of src/pliant that a page's figures depend on; a page not listed depends on all."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One of the project's claims: the measured value, the bar in words, and whether it holds."""

    id: str
    value: float | str
    bar: str
    holds: bool
    note: str = ""


@dataclass(slots=True)
class Report:
    """Collects tables and claims, prints them, writes JSON and, for a full run, docs/results/NAME.md."""

    name: str
    workload: str
    options: argparse.Namespace
    tables: list[tuple[str, list[dict[str, object]]]] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    commit: str = field(default_factory=lambda: commit())
    """The commit before any file was written."""

    def table(self, title: str, rows: Sequence[Mapping[str, object]]) -> None:
        """Print `rows` (all with the same keys) under `title` and keep them."""
        kept = [dict(r) for r in rows]
        self.tables.append((title, kept))
        out = Table(title=title, title_justify="left")
        for key in kept[0] if kept else ():
            out.add_column(escape(str(key)), justify="right")
        for row in kept:
            out.add_row(*(escape(_cell(v)) for v in row.values()))
        Console(width=200).print(out)

    def claim(self, id: str, value: float | str, bar: str, holds: bool, note: str = "") -> None:
        self.claims.append(Claim(id, value, bar, bool(holds), note))

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finish(self) -> None:
        """Print the claims; write the files selected by the options."""
        for claim in self.claims:
            verdict = "holds" if claim.holds else "MISSED"
            print(f"[{claim.id}] {_cell(claim.value)} (bar: {claim.bar}): {verdict}. {claim.note}".rstrip())
        if self.options.json:
            Path(self.options.json).write_text(json.dumps(self._as_json(), indent=1) + "\n")
        if not self.options.quick and not self.options.no_results:
            folder = ROOT / "docs" / "results"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{self.name}.md").write_text(self._as_markdown())

    def _as_json(self) -> dict[str, object]:
        rows = [{"table": title, **row} for title, rows in self.tables for row in rows]
        return {
            "machine": machine(),
            "commit": self.commit,
            "workload": self.workload,
            "rows": rows,
            "claims": [asdict(c) for c in self.claims],
        }

    def _as_markdown(self) -> str:
        parts = [
            f"# {self.name}",
            f"Machine: {machine()}  \nCommit: {self.commit}  \nMeasures: {_measured(self.name)}  \n"
            f"Workload: {self.workload}  \n"
            f"Command: `{_command()}`",
        ]
        parts += self.notes
        for title, rows in self.tables:
            parts.append(f"## {title}")
            if rows:
                head = "| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0])
                lines = ["| " + " | ".join(map(_cell, row.values())) + " |" for row in rows]
                parts.append("\n".join([head, *lines]))
        parts.append("## Claims")
        parts.append("| claim | measured | bar | holds | note |\n|---|---|---|---|---|")
        parts[-1] += "".join(
            f"\n| `{c.id}` | {_cell(c.value)} | {c.bar} | {'yes' if c.holds else '**no**'} | {c.note} |"
            for c in self.claims
        )
        return "\n\n".join(parts) + "\n"


def _measured(name: str) -> str:
    """Paths whose change makes the page older than the code (`scripts/results.py`)."""
    packages = _MEASURES.get(name, ())
    return " ".join(f"src/pliant/{package}" for package in packages) or "src/pliant"


def options(
    description: str, extra: Callable[[argparse.ArgumentParser], None] | None = None
) -> argparse.Namespace:
    """The options that all benches share: --quick (within a minute), --json FILE, --no-results."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="a small version that ends within a minute")
    parser.add_argument("--json", metavar="FILE", help="write machine, commit, rows and claims as JSON")
    parser.add_argument("--no-results", action="store_true", help="do not write docs/results")
    if extra is not None:
        extra(parser)
    return parser.parse_args()


def interleaved(
    functions: Mapping[str, Callable[[], float]], rounds: int
) -> tuple[dict[str, list[float]], Callable[[str, str], float]]:
    """Seconds of each function over `rounds`, run A B C A B C ..., and the median of paired ratios a/b.

    Each function returns its own seconds. Machines drift by a factor of two; only paired ratios compare.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(rounds):
        names = list(functions) if round_ % 2 == 0 else list(functions)[::-1]
        for name in names:
            seconds[name].append(functions[name]())
    return seconds, lambda a, b: median(x / y for x, y in zip(seconds[a], seconds[b], strict=True))


def machine() -> str:
    """CPU model, cores, the row of kernels that runs natively with its features, and system, in one line."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    isa = host_isa()
    row = f"{isa.name}{isa.features}".replace(",", "")
    return f"{model}, {os.cpu_count()} cores, kernels of {row}, {platform.system()} {platform.machine()}"


def commit() -> str:
    """The commit measured, with `-dirty` when the tree differs from it."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def _command() -> str:
    """The command as it was given, with what ran the script, such as without_amx.py."""
    before = [Path(word).name for word in sys.orig_argv[1:] if Path(word).suffix == ".py"][:-1]
    scripts = [f"bench/{name}" for name in (*before, Path(sys.argv[0]).name)]
    return " ".join(["python", *scripts, *map(_argument, sys.argv[1:])])


def _argument(word: str) -> str:
    """The argument as given; the path of a folder on this machine is omitted."""
    return "DIR" if Path(word).is_absolute() else word


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
