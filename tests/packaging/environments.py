"""Environments that hold pliant's wheel and the packages that it declares, and nothing else.

The wheel is built from a copy of the checkout and installed by pip. The packages come from the environment
that the tests run in, as symbolic links: pip downloaded them for it, and nothing is downloaded or unpacked
again, which takes half a minute an extra and needs a network. What an extra adds is linked beside what pip
installed.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution, distributions
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
_NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
_ROOT_FILE = re.compile(r"[^/]+/__init__\.py|[^/]+\.dist-info/METADATA")
"""What a folder holds that belongs to one distribution alone; one without it may be shared."""
_UNSET = ("PYTHON", "PLIANT", "VIRTUAL_ENV", "HF_", "PIP_")
"""How the names of variables begin that would lead out of an environment."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment, a folder outside the checkout to run in, and a cache for pliant."""

    folder: Path
    cache: Path

    @property
    def site(self) -> Path:
        """Where its packages lie."""
        (site,) = self.folder.glob("lib/python*/site-packages")
        return site

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def variables(self) -> dict[str, str]:
        """What a process of a user of this environment finds set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_UNSET)}
        own = {"PLIANT_CACHE": str(self.cache), "HF_HOME": str(self.folder / "hf"), "HF_HUB_OFFLINE": "1"}
        return kept | own | {"PATH": f"{self.folder / 'bin'}{os.pathsep}{kept['PATH']}", "COLUMNS": "200"}

    def run(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Python with the arguments `words`, and what it wrote; the status is the caller's to check."""
        return subprocess.run(
            [self.python, *map(str, words)],
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            check=False,
        )

    def answer(self, *words: object) -> str:
        """Standard output of a program that succeeds."""
        done = self.run(*words)
        assert done.returncode == 0, f"{done.args}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built in `folder`: the checkout may hold leftovers of earlier builds."""
    checkout = shutil.copytree(ROOT, folder / "checkout", ignore=_NOT_COPIED)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, checkout)
    (wheel,) = folder.glob("*.whl")
    return wheel


def metadata(wheel: Path) -> Distribution:
    """What the wheel says of itself."""
    (info,) = (entry for entry in ZipPath(wheel).iterdir() if entry.name.endswith(".dist-info"))
    return PathDistribution(info)


def install(wheel: Path, folder: Path, cache: Path) -> Environment:
    """A new environment in `folder` with the wheel, without extras."""
    environment = _made(folder, cache, _requirements(metadata(wheel), ""))
    _pip("--python", environment.python, "install", "--no-index", wheel)
    return environment


def with_extra(base: Environment, extra: str, folder: Path) -> Environment:
    """A new environment in `folder` with what `base` has of pliant, and that one extra."""
    (own,) = distributions(name="pliant", path=[str(base.site)])
    return _made(folder, base.cache, [own, *_requirements(own, extra)])


def _made(folder: Path, cache: Path, packages: list[Distribution]) -> Environment:
    venv.create(folder, with_pip=False, symlinks=True)
    environment = Environment(folder, cache)
    for one in packages:
        _link(one, environment.site)
    return environment


def _requirements(own: Distribution, extra: str) -> list[Distribution]:
    """What `own[extra]` requires, directly or not, as installed here.

    Raises PackageNotFoundError, with the name, where a package is not installed; fails where it is too old.
    """
    found: dict[tuple[str, str], Distribution] = {}
    todo = [(own, ""), (own, extra)]
    while todo:
        one, chosen = todo.pop()
        if (key := (canonicalize_name(one.name), chosen)) in found:
            continue
        found[key] = one
        for wanted in map(Requirement, one.requires or ()):
            if wanted.marker is None or wanted.marker.evaluate({"extra": chosen}):
                is_own = canonicalize_name(wanted.name) == canonicalize_name(own.name)
                other = own if is_own else distribution(wanted.name)
                assert wanted.specifier.contains(other.version, prereleases=True), (
                    f"{wanted}: {other.version}"
                )
                todo += [(other, name) for name in ("", *wanted.extras)]
    return list({one.name: one for one in found.values() if one is not own}.values())


def _link(one: Distribution, site: Path) -> None:
    """What `one` installed, as symbolic links in `site`: its packages whole, anything else file by file.

    Its commands, which name their Python, are left out.
    """
    files = [row[0] for row in csv.reader((one.read_text("RECORD") or "").splitlines())]
    whole = {file.partition("/")[0] for file in files if _ROOT_FILE.fullmatch(file)}
    for name in whole | {file for file in files if file.partition("/")[0] not in whole | {".."}}:
        link = site / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(Path(str(one.locate_file(name))))


def _pip(*words: object) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
