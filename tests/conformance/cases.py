"""ONNX's own backend cases, compiled together and run one by one. Knows no operator."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from pliant.compile.encode import kernels
from pliant.compile.load import addresses
from pliant.compiled import shared_pool
from pliant.errors import PliantError
from pliant.models.onnx_file import open_onnx
from pliant.models.onnx_nodes import operator_key
from pliant.run.model import ModelOptions, ModelSession


@dataclass(frozen=True)
class Case:
    """A model, its inputs and the outputs it must give to `rtol` and `atol`."""

    name: str
    model: Any
    data: tuple[tuple[Sequence[Any], Sequence[Any]], ...]
    rtol: float
    atol: float

    @property
    def operators(self) -> set[str]:
        """Every operator of the model, its branches' and bodies' included."""
        return {operator_key(n.domain, n.op_type) for n in _nodes(self.model.graph)}


@dataclass(frozen=True)
class Outcome:
    """What became of a case: `refused` holds pliant's words, `wrong` how the outputs differ."""

    case: Case
    refused: str = ""
    wrong: str = ""

    @property
    def passed(self) -> bool:
        return not self.refused and not self.wrong


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
            cases.append(Case(case.name, case.model, sets, case.rtol, case.atol))
        elif case.model_dir is not None:
            directory = Path(case.model_dir)
            model = onnx.load(directory / "model.onnx")
            sets = tuple(_stored(d) for d in sorted(directory.glob("test_data_set_*")))
            cases.append(Case(case.name, model, sets, case.rtol, case.atol))
    return sorted(cases, key=lambda case: case.name)


def run_all(cases: Sequence[Case]) -> Iterator[Outcome]:
    """Run cases; all their kernels are compiled first, in one child process."""
    library, pool = shared_pool(2)
    sessions: dict[str, ModelSession] = {}
    refused: dict[str, str] = {}
    wanted = {}
    for case in cases:
        try:
            # Sequences, strings and the like have no feeds to make an image for.
            session = ModelSession(open_onnx(case.model), pool, library, ModelOptions({}), ahead=False)
            sessions[case.name] = session
            for inputs, _ in case.data[:1]:
                wanted.update(kernels(session.image(_feeds(session, inputs))))
        except PliantError as error:
            refused[case.name] = str(error)
    addresses(wanted, library)
    for case in cases:
        if case.name in refused:
            yield Outcome(case, refused=refused[case.name])
        else:
            yield _run(case, sessions[case.name])


def _run(case: Case, session: ModelSession) -> Outcome:
    with session:
        for inputs, expected in case.data:
            try:
                results = session.run(_feeds(session, inputs))
            except PliantError as error:
                return Outcome(case, refused=str(error))
            for port, right in zip(session.outputs, expected, strict=False):
                wrong = _difference(results[port.name], np.asarray(right), case)
                if wrong:
                    return Outcome(case, wrong=f"output {port.name!r}: {wrong}")
    return Outcome(case)


def _feeds(session: ModelSession, inputs: Sequence[Any]) -> dict[str, np.ndarray]:
    return {port.name: np.asarray(x) for port, x in zip(session.inputs, inputs, strict=False)}


def _difference(result: np.ndarray, right: np.ndarray, case: Case) -> str:
    if result.dtype != right.dtype or result.shape != right.shape:
        return f"{result.dtype}{list(result.shape)} instead of {right.dtype}{list(right.shape)}"
    if right.dtype.kind not in "fiub":
        result, right = result.astype(np.float32), right.astype(np.float32)
    try:
        np.testing.assert_allclose(result, right, rtol=case.rtol, atol=case.atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:300]
    return ""


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
