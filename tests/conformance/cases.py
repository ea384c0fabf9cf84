"""ONNX's own backend cases, compiled together and run one by one. Knows no operator."""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from pliant.api.compile_onnx import shared_pool
from pliant.compiler.executable.call import Kernel
from pliant.compiler.executable.encode_image import image_kernels
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.errors import GraphError, PliantError
from pliant.models.onnx.onnx_file import open_onnx
from pliant.models.onnx.onnx_nodes import operator_key
from pliant.run.array_sessions.onnx_session import OnnxSession
from pliant.run.graph.model_options import ModelOptions

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A model, its inputs and the outputs it must give to `rtol` and `atol`."""

    kind: str
    name: str
    model: Any
    data: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """Every operator of the model, its branches' and bodies' included."""
        return {operator_key(n.domain, n.op_type) for n in _nodes(self.model.graph)}

    @property
    def element_types(self) -> set[str]:
        """Element types of inputs and outputs, in ONNX's lower-case words."""
        ports = (*self.model.graph.input, *self.model.graph.output)
        return {onnx.TensorProto.DataType.Name(_element(v.type)).lower() for v in ports}


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a case: `refused` holds pliant's words, `wrong` how the outputs differ."""

    name: str
    operators: list[str]
    element_types: list[str]
    kind: str = ""
    refused: str = ""
    wrong: str = ""

    @property
    def passed(self) -> bool:
        return not self.refused and not self.wrong


def run_in_processes(kinds: Sequence[str], n_processes: int = 2) -> list[CaseOutcome]:
    """The outcomes of all cases of `kinds`, from processes of their own.

    There annotations are not checked at run time, which costs minutes, and a kernel that crashes takes
    no test run with it.
    """
    command = [sys.executable, "-W", "error", "-m", "tests.conformance.cases"]
    children = [
        subprocess.Popen([*command, f"{i}/{n_processes}", *kinds], stdout=subprocess.PIPE, cwd=_ROOT)
        for i in range(n_processes)
    ]
    outcomes = []
    for child in children:
        written, _ = child.communicate()
        lines = [json.loads(line) for line in written.decode().splitlines()]
        begun = lines[-1].get("begun") if lines else "the first case"
        if child.returncode:
            lines.append(vars(CaseOutcome(begun or "the end", [], [], wrong=f"exit {child.returncode}")))
        outcomes += [CaseOutcome(**line) for line in lines if "begun" not in line]
    return outcomes


def load(kind: str) -> list[Case]:
    """All cases of a kind that come with their model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found = load_model_tests(kind=kind)
    cases = []
    for case in found:
        if case.model is not None:
            sets = tuple((_arrays(inputs), _arrays(outputs)) for inputs, outputs in case.data_sets)
            cases.append(Case(kind, case.name, case.model, sets, case.rtol, case.atol))
        elif case.model_dir is not None:
            directory = Path(case.model_dir)
            model = onnx.load(directory / "model.onnx")
            sets = tuple(_stored(d) for d in sorted(directory.glob("test_data_set_*")))
            cases.append(Case(kind, case.name, model, sets, case.rtol, case.atol))
    return sorted(cases, key=lambda case: case.name)


def run_all(cases: Sequence[Case]) -> Iterator[CaseOutcome]:
    """Run cases; all their kernels are compiled first, in one child process."""
    library, pool = shared_pool(1)
    sessions: dict[str, OnnxSession] = {}
    refused: dict[str, str] = {}
    wanted: dict[str, Kernel] = {}
    for case in cases:
        try:
            sessions[case.name] = OnnxSession(
                open_onnx(case.model), pool, library, ModelOptions({}), ahead=False
            )
            for inputs, _ in case.data[:1]:
                with suppress(GraphError):  # a model in parts compiles its kernels as it runs
                    image = sessions[case.name].image(_feeds(sessions[case.name], inputs))
                    wanted.update(image_kernels(image))
        except PliantError as error:
            refused[case.name] = str(error)
    load_kernels(wanted, library)
    for case in cases:
        about = CaseOutcome(case.name, sorted(case.operators), sorted(case.element_types), case.kind)
        if case.name in refused:
            yield replace(about, refused=refused[case.name])
        else:
            print(json.dumps({"begun": case.name}), flush=True)
            yield _run(case, sessions[case.name], about)


def _run(case: Case, session: OnnxSession, about: CaseOutcome) -> CaseOutcome:
    with session:
        for inputs, expected in case.data:
            try:
                results = session.run(_feeds(session, inputs))
            except PliantError as error:
                return replace(about, refused=str(error))
            for port, right in zip(session.outputs, expected, strict=False):
                wrong = _value_difference(results[port.name], right, case)
                if wrong:
                    return replace(about, wrong=f"output {port.name!r}: {wrong}")
    return about


def _feeds(session: OnnxSession, inputs: Sequence[Any]) -> dict[str, Any]:
    pairs = zip(session.inputs, inputs, strict=False)
    return {port.name: np.asarray(x) if port.element is None else x for port, x in pairs}


def _value_difference(result: Any, right: Any, case: Case) -> str:
    """As `_difference`, of sequences and optional values too."""
    if not isinstance(right, list):
        is_absent = result is None or right is None
        return (
            "one is absent" * (result is not right)
            if is_absent
            else _difference(result, np.asarray(right), case)
        )
    if not isinstance(result, list) or len(result) != len(right):
        return f"{type(result).__name__} instead of a sequence of {len(right)}"
    return next(filter(None, (_value_difference(x, y, case) for x, y in zip(result, right, strict=True))), "")


def _difference(result: np.ndarray, right: np.ndarray, case: Case) -> str:
    if result.dtype != right.dtype or result.shape != right.shape:
        return f"{result.dtype}{list(result.shape)} instead of {right.dtype}{list(right.shape)}"
    rtol, atol = _tolerance(right, case)
    if right.dtype.kind not in "fiub":
        result, right = result.astype(np.float32), right.astype(np.float32)
    try:
        np.testing.assert_allclose(result, right, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


def _tolerance(right: np.ndarray, case: Case) -> tuple[float, float]:
    """The case's; for half-precision outputs, whose rounding alone is larger, two units in the last place."""
    unit = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(str(right.dtype), 0.0)
    largest = float(np.max(np.abs(right.astype(np.float64)), initial=0.0)) if unit else 0.0
    largest = largest if np.isfinite(largest) else 0.0
    return max(case.rtol, 2 * unit), max(case.atol, unit * largest)


def _element(type_: Any) -> int:
    """The element type of the tensors that a value is or holds."""
    kind = type_.WhichOneof("value")
    held = getattr(type_, kind)
    return _element(held.elem_type) if kind in ("sequence_type", "optional_type") else int(held.elem_type)


def _arrays(values: Sequence[Any]) -> list[Any]:
    """Some cases come as TensorProtos, where numpy has no such type."""
    return [numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else v for v in values]


def _stored(directory: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    def read(prefix: str) -> list[np.ndarray]:
        count = len(list(directory.glob(f"{prefix}_*.pb")))
        return [_tensor(directory / f"{prefix}_{i}.pb") for i in range(count)]

    return read("input"), read("output")


def _tensor(path: Path) -> np.ndarray:
    proto = onnx.TensorProto()
    proto.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(proto)


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _nodes(body)


if __name__ == "__main__":
    _part, _of = map(int, sys.argv[1].split("/"))
    _cases = [case for kind in sys.argv[2:] for case in load(kind)]
    # Cases of neighbouring names share kernels: in one process these are compiled once.
    _mine = _cases[len(_cases) * _part // _of : len(_cases) * (_part + 1) // _of]
    for _outcome in run_all(_mine):
        print(json.dumps(vars(_outcome)), flush=True)
