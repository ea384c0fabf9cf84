"""ONNX's backend interface (`onnx.backend.base`) over `pliant.compile`.

>>> import onnx.parser
>>> import pliant.api.onnx_backend
>>> model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) '
...     '{ y = Add(x, x) }')
>>> pliant.api.onnx_backend.run_model(model, [np.float32([1, 2])])[0]
array([2., 4.], dtype=float32)
"""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from pliant.api.compile_onnx import compile
from pliant.errors import InputError
from pliant.run.array_sessions.onnx_session import OnnxSession

Inputs = Sequence[np.ndarray] | Mapping[str, np.ndarray] | np.ndarray


@final
class PreparedModel:
    """A compiled model that takes inputs by position, as onnx.backend.base.BackendRep does."""

    def __init__(self, session: OnnxSession) -> None:
        self.session = session

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Outputs in order. Raises InputError for inputs that do not fit."""
        _none(kwargs)
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        ports = self.session.inputs
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(ports):
                names = [port.name for port in ports]
                raise InputError(f"{len(inputs)} inputs were given; the model takes {names}.")
            pairs = zip(ports, inputs, strict=True)
            inputs = {port.name: x if port.element else np.asarray(x) for port, x in pairs}
        results = self.session.run(inputs)
        return tuple(results[port.name] for port in self.session.outputs)


def prepare(model: Any, device: str = "CPU", **kwargs: Any) -> PreparedModel:
    """Compile a ModelProto. Raises GraphError naming what is unsupported, InputError for other devices."""
    _none(kwargs)
    if not supports_device(device):
        raise InputError(f"there is no device {device!r}; pliant runs on the CPU.")
    return PreparedModel(compile(model))


def run_model(model: Any, inputs: Inputs, device: str = "CPU", **kwargs: Any) -> tuple[np.ndarray, ...]:
    """Compile and run once."""
    return prepare(model, device, **kwargs).run(inputs)


def supports_device(device: str) -> bool:
    """Return whether models can be prepared for a device, in the names of onnx: "CPU", "CUDA:1"."""
    return device.split(":")[0] == "CPU"


def _none(options: Mapping[str, Any]) -> None:
    if options:
        raise InputError(f"unknown options {sorted(options)}; leave them out.")
