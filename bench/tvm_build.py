"""An ONNX model as a shared library by TVM's own default pipeline: `python bench/tvm_build.py FILE OUT`.

Untuned: without a search that takes hours. If TVM's importer refuses the file, onnxruntime's basic
simplification of it (standard operators only) is used instead, and the printed line states it.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
import onnxruntime
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx


def main() -> None:
    path, out = Path(sys.argv[1]), Path(sys.argv[2])
    said = "as exported"
    try:
        made = _imported(onnx.load(path))
    except Exception as error:  # noqa: BLE001 - whatever its importer raises, the reason is printed
        said = f"simplified by onnxruntime first: {type(error).__name__} on import"
        with TemporaryDirectory() as folder:
            made = _imported(_simplified(path, Path(folder) / "simple.onnx"))
    target = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu()})
    tvm.compile(relax.get_pipeline("zero")(made), target).export_library(str(out))
    print(said)


def _imported(model: onnx.ModelProto) -> Any:
    return from_onnx(model, keep_params_in_input=False)


def _simplified(path: Path, out: Path) -> onnx.ModelProto:
    chosen = onnxruntime.SessionOptions()
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    chosen.optimized_model_filepath = str(out)
    chosen.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), chosen, providers=["CPUExecutionProvider"])
    return onnx.load(out)


if __name__ == "__main__":
    main()
