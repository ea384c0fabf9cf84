"""How a node opens a model: its memory outside the division of a budget, and its arithmetic."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import pliant
from pliant.api.compile_onnx import compile_image
from pliant.cli.node import NodeArguments
from pliant.cli.shared import model_arguments
from pliant.cli.shared.model_arguments import ModelArguments
from pliant.cli.shared.node_models import model_entries
from pliant.cluster.net.key import new_key
from pliant.compiler.aot.compiled_directory import save
from pliant.compiler.executable.call import Target
from pliant.errors import BudgetError, ClusterError, InputError
from pliant.kernels.emit.isa import host_isa
from pliant.run.process_memory import MemoryBudget
from pliant.serve.repository.model_entry import ModelEndpoints, OpenModel
from tests.cluster.processes import small_model
from tests.cluster.test_clustered import write_key
from tests.graded_store import graded_store as graded_store
from tests.models.onnx_models import parse
from tests.serve.nodes import PATIENCE_S, asking, running_models
from tests.serve.repository.test_models_under_load import sums
from tests.tiny import tiny_spec, write_model

TEXT = "a charming and often affecting journey"


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


def _pictures(folder: Path) -> Path:
    """A model that cannot batch: its weights take 59 KB, its arena 512 KB or more."""
    rng = np.random.default_rng(0)
    model = parse(
        "g (float[1,8,64,64] x) => (float[1,32,64,64] y) { "
        "c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x, k) r = Relu(c) "
        "y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (r, l) }"
    )
    for name, shape in (("k", (32, 8, 3, 3)), ("l", (32, 32, 3, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    onnx.save(model, folder / "pictures.onnx")
    return folder / "pictures.onnx"


def _run_beside(session: Any, n_workers: int) -> None:
    """Let all workers run at the same time."""
    request, begun = session.request(session.sample(1)), Barrier(n_workers, timeout=60)

    def ask(_: int) -> int:
        begun.wait()
        return len(session.answers_beside([request]))

    with ThreadPoolExecutor(n_workers) as threads:
        assert sum(threads.map(ask, range(4 * n_workers))) == 4 * n_workers


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_model_has_as_many_workers_as_a_shared_budget_has_room_for(
    tmp_path: Path, is_compiled: bool
) -> None:
    """A compiled directory was refused unless all its workers fitted; those of an ONNX model did not count,
    nor those of `--compute-workers`.
    """
    source = _pictures(tmp_path)
    _, image, _ = compile_image(source, Target(host_isa(), 8))
    if is_compiled:
        source = tmp_path / "compiled"
        save(image, source)
    scratch = -(-image.scratch_bytes // 64) * 64

    def opened(room: int, n_workers: int | None) -> tuple[int, int]:
        """The workers, and the bytes reserved, which are those in memory."""
        budget, other = MemoryBudget(100_000_000), {"another owner"}
        budget.reserve_fixed(other, budget.total_bytes - room)
        entry = ModelArguments(source=str(source), threads=8).entry(
            ModelEndpoints(), compute_workers=n_workers
        )
        for _ in range(2):  # what it takes is known when it is opened again
            one = entry.open(budget)
            session, n_bytes = one.local, room - budget.free_bytes
            session.divide_threads(n_workers)  # as the node does
            n, memory = session.most_beside, session.memory
            assert memory.predicted_bytes == n_bytes <= room
            session.divide_threads(8)
            assert session.memory.predicted_bytes <= n_bytes
            session.divide_threads(n_workers)
            _run_beside(session, n)
            assert session.memory.measured_bytes <= n_bytes
            (share,) = (one for one in budget.shares if one.held_bytes)
            assert 0 < share.held_bytes <= n_bytes
            session.close()
            one.close()
        return n, n_bytes

    _, least = opened(90_000_000, 1)
    every = {n: n * (image.arena_bytes + 8 // n * scratch) for n in range(2, 9)}
    assert 0 <= least - image.arena_bytes < (1 if is_compiled else 300_000)
    assert opened(least, None) == opened(least, 8) == (1, least)
    assert opened(90_000_000, None) == (4, least + every[4])
    assert opened(90_000_000, 8) == (8, least + every[8])
    for n in (2, 3):  # all threads have scratch
        room = least + n * image.arena_bytes + 8 * scratch
        assert opened(room, 8) == (n, least + every[n])
        assert opened(room - 1, 8)[0] == n - 1
    with pytest.raises(BudgetError):
        opened(least - 1, 1)


@pytest.mark.parametrize("is_split_only", [True, False])
def test_a_limit_of_its_own_is_reserved_for_each_of_a_model_and_its_cluster(
    tmp_path: Path, is_split_only: bool
) -> None:
    """Only the session of this device was counted: a cluster's weights came on top of `--memory`."""
    source = small_model(tmp_path) if is_split_only else str(write_model(tmp_path / "bert", tiny_spec()))
    options = {"cluster": "127.0.0.1:0", "key": write_key(tmp_path / "key", new_key()), "workers": 0}
    limit = "3MB"
    if is_split_only:  # only a cluster reads it from a file
        (tmp_path / "limit").write_text(limit)
        limit = f"@{tmp_path / 'limit'}"
    entry = ModelArguments(source=source, memory=limit, threads=1, **options).entry(ModelEndpoints())
    n_bytes = 3_000_000 if is_split_only else 6_000_000
    for total_bytes in (n_bytes, n_bytes - 1):
        memory = MemoryBudget(total_bytes)
        if total_bytes < n_bytes:
            with pytest.raises(BudgetError, match="for its cluster take 3 MB") as short:
                entry.open(memory)
            assert short.value.short_bytes == 1
        else:
            opened = entry.open(memory)
            shared = opened.cluster or opened.local
            assert shared.memory.budget_bytes == 3_000_000
            assert memory.free_bytes == 0
            opened.local.close()
            opened.close()
        assert memory.free_bytes == memory.total_bytes


def test_a_model_that_can_be_answered_waits_for_no_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node that restarted while its worker was away was down for 120 s, though it could answer itself."""

    def opened(source: str, upstream: list[str] | None = None, **more: Any) -> OpenModel:
        args = NodeArguments(
            model=[source], threads=1, cluster="127.0.0.1:0", key=key, upstream=upstream, **more
        )
        (entry,) = model_entries(args, ())
        return entry.open(None)

    monkeypatch.setattr(model_arguments, "PATIENCE_S", 0.5)
    key, split_only = write_key(tmp_path / "key", new_key()), small_model(tmp_path)
    one = opened(str(write_model(tmp_path / "bert", tiny_spec())))
    assert one.cluster is not None
    assert one.cluster.levels()[-1].reason is None
    one.local.close()
    one.close()
    assert "is served at once; workers may join its cluster at 127.0.0.1:" in capsys.readouterr().err
    above = opened(split_only, upstream=["http://127.0.0.1:9"], memory="100KB")
    (level,) = above.local.levels()
    assert "the layers' weights take" in (level.reason or "")
    above.local.close()
    above.close()
    said = capsys.readouterr().err
    assert "is served without its cluster at 127.0.0.1:" in said
    assert "waiting for" not in said
    with pytest.raises(BudgetError, match="the layers' weights take"):
        opened(split_only, memory="100KB", workers=0)
    for more in ({"workers": 1}, {"workers": 1, "upstream": ["http://127.0.0.1:9"]}, {}):
        with pytest.raises(ClusterError, match="1 worker"):
            opened(split_only, **more)


def test_a_served_text_encoder_multiplies_in_the_given_arithmetic(tiny_model: Callable[..., Path]) -> None:
    """A node answered in float32, whatever its CPU is good at."""
    model = str(tiny_model("bert", n_layers=4, widths=(2, 4)))
    (entry,) = model_entries(NodeArguments(model=[model], compute="int8", threads=1), ())
    with running_models([entry]) as node:
        url = f"{node.url}/v2/models/{entry.key.name}/infer"
        answer = httpx.post(url, content=asking(TEXT), timeout=PATIENCE_S)
    found = answer.json()["outputs"][0]["data"]
    logits = {}
    for compute in ("int8", "fp32"):
        with pliant.open(model, threads=1, compute=compute, preload="100MB") as alone:
            logits[compute] = alone(TEXT).logits
    np.testing.assert_allclose(found, logits["int8"], rtol=1e-5)
    assert not np.allclose(found, logits["fp32"], rtol=1e-4)


def test_a_node_chooses_the_arithmetic_by_measured_accuracy(graded_store: Path) -> None:
    """The plan says why."""
    options = ModelArguments(source=str(graded_store), threads=1, compute="auto", tolerance=1.0)
    opened = options.entry(ModelEndpoints()).open(None)
    assert opened.local.options.precision.tolerance == 1.0
    assert "by the store's grid" in str(opened.local.plan)
    opened.local.close()
    opened.close()


def test_a_node_without_examples_cannot_choose(tmp_path: Path, tiny_model: Callable[..., Path]) -> None:
    """Before the model is opened, in the words of the command line."""
    for source in (sums(tmp_path), tiny_model("bert")):
        with pytest.raises(InputError, match=r"no measured accuracy .*--compute fp32, bf16 or int8"):
            ModelArguments(source=str(source), compute="auto").entry(ModelEndpoints())
