"""What a process takes that only runs a compiled model."""

import json
import subprocess
import sys


def test_loading_a_model_imports_no_compiler() -> None:
    """Memory and start of a small model are those of what is imported: onnx and our passes take 40 MB."""
    code = "import sys, json, pliant; pliant.load; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads(done.stdout))
    heavy = {"onnx", "ml_dtypes", "jaxtyping", "highspy", "psutil", "rich", "scipy", "llvmlite.binding"}
    assert not heavy & loaded
    assert not {x for x in loaded if x.startswith(("pliant.compile.lower", "pliant.compile.simplify"))}
