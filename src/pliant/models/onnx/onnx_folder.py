"""Find the ONNX model of a directory."""

from pathlib import Path

SUFFIX = ".onnx"


def onnx_in(directory: Path) -> Path | None:
    """The single ONNX file at the top of `directory`; None if it has none or several, or safetensors.

    Safetensors are the weights of a model directory, which an exporter may have written its graph into.
    """
    if next(directory.glob("*.safetensors"), None) is not None:
        return None
    graphs = [path for path in directory.glob(f"*{SUFFIX}") if not path.is_dir()]
    return graphs[0] if len(graphs) == 1 else None
