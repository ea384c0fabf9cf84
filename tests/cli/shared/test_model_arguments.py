"""The memory that a model is opened within when it cannot take part in the division of a budget."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from pliant.cli.shared import model_arguments
from pliant.cli.shared.model_arguments import ModelArguments
from pliant.errors import BudgetError
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEndpoints
from tests.serve.repository.test_models_under_load import sums


def test_a_model_is_opened_only_within_the_memory_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened first: it exceeded the limit, and was opened again once others had been evicted."""
    n_opened = 0
    open_endpoint = model_arguments.open_endpoint

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal n_opened
        n_opened += 1
        return open_endpoint(*args, **options)

    monkeypatch.setattr(model_arguments, "open_endpoint", counted)
    path = sums(tmp_path)
    entry = ModelArguments(source=str(path), threads=1).entry(ModelEndpoints())
    memory, other = MemoryBudget(10_000_000), {"another owner"}
    opened = entry.open(memory)
    n_bytes = memory.total_bytes - memory.free_bytes
    assert n_bytes > path.stat().st_size
    opened.local.close()
    opened.close()
    memory.reserve_fixed(other, memory.total_bytes - n_bytes + 1)
    with pytest.raises(BudgetError) as short:
        entry.open(memory)
    assert (short.value.short_bytes, n_opened) == (1, 1)
    sums(tmp_path, scale=2.0)  # of another file the size is not known yet
    with pytest.raises(BudgetError):
        entry.open(memory)
    assert n_opened == 2


def test_weights_that_fit_are_chosen_within_what_others_leave_of_the_memory(tmp_path: Path) -> None:
    """A model outside the division of the budget saw no limit: it was opened in float32, and refused."""
    rng, ports = (
        np.random.default_rng(0),
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 256]) for name in "xy"],
    )
    weights = numpy_helper.from_array((rng.standard_normal((256, 256)) / 16).astype(np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", ports[:1], ports[1:], [weights])
    path, opset = tmp_path / "product.onnx", [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)

    def taken(weights: str | None, left: int) -> int:
        memory, other = MemoryBudget(10_000_000), {"another owner"}
        memory.reserve_fixed(other, memory.total_bytes - left)
        opened = (
            ModelArguments(source=str(path), threads=1, weights=weights).entry(ModelEndpoints()).open(memory)
        )
        n_bytes = left - memory.free_bytes
        opened.local.close()
        opened.close()
        return n_bytes

    whole = taken("auto", 5_000_000)
    assert whole == taken(None, 5_000_000)
    assert taken("auto", whole - 1) < whole
