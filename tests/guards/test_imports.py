"""What importing pliant loads: which packages come in with which public name, and how many modules at first.

Protects: the time until a command line or a server has started. The time itself is not asserted.
Update: `pytest tests/guards/test_imports.py --update-golden`; the commit says why a package is needed
earlier, or names a Python version that is new here.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import pliant
from tests.conftest import GOLDEN

NAMES = ("load", "open", "Cluster")
PACKAGES = (
    *("torch", "transformers", "matplotlib", "onnxruntime", "openvino", "huggingface_hub", "zeroconf"),
    *("starlette", "uvicorn", "httpx", "prometheus_client", "zmq", "typer", "rich", "highspy", "onnx"),
    *("google.protobuf", "llvmlite", "llvmlite.binding", "ml_dtypes", "msgspec", "numpy", "psutil"),
    *("safetensors", "tokenizers", "xxhash"),
)
"""Whose import takes time or memory, or needs an extra."""

_IN_TURN = """
import json, sys
import pliant
packages, names = json.loads(sys.argv[1])
record, known = {}, set()
def note(key):
    found = set(packages) & set(sys.modules)
    record[key] = sorted(found - known)
    known.update(found)
note("import pliant")
for name in names:
    getattr(pliant, name)
    note(f"then pliant.{name}")
print(json.dumps(record))
"""
_ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import pliant
print(*sorted(set(sys.modules) - before))
"""


def test_packages_come_in_with_the_name_that_needs_them(golden_record: Callable[..., None]) -> None:
    """`import pliant` loads none of them; each further name, in this order, only what it needs itself."""
    record = json.loads(_run(_IN_TURN, json.dumps([PACKAGES, NAMES])))
    assert record["import pliant"] == []
    golden_record("imports.json", record)


def test_importing_pliant_loads_few_modules(
    request: pytest.FixtureRequest, golden_record: Callable[..., None]
) -> None:
    """The modules of Python itself, and how many are pliant's own; each version of Python has its file."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"imports_{version}.json"
    if not (GOLDEN / "guards" / name).exists() and not request.config.getoption("--update-golden"):
        pytest.skip(f"no modules are kept for Python {version}; --update-golden keeps them")
    found = _run(_ALONE, str(Path(pliant.__file__).parents[1]), "-IS").split()
    own = [module for module in found if module.partition(".")[0] == pliant.__name__]
    # Parts of a module of Python, and those with a leading underscore, change with its patch versions.
    others = [module for module in found if "." not in module and module[0] != "_" and module not in own]
    golden_record(name, {"of Python": others, "of pliant": len(own)})


def _run(script: str, argument: str, *flags: str) -> str:
    command = [sys.executable, *flags, "-c", script, argument]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
