"""A store from a checkpoint and back: every decoded weight, every byte's place, every read."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from pliant.errors import StoreError
from pliant.ir.program import FULL
from pliant.models.hf.checkpoint import Checkpoint, open_checkpoint, save_checkpoint
from pliant.models.spec import ModelSpec
from pliant.plan.submodel.io_plan import count_reads
from pliant.plan.submodel.shape import store_shape
from pliant.store.build import BuildProgress, build
from pliant.store.coding.cut_slices import LINEARS, column_group_starts, cut
from pliant.store.coding.encode_layer import to_precision
from pliant.store.coding.planes import decode, unpack_planes
from pliant.store.coding.quantize import Quantizer, quantize_table
from pliant.store.manifest import put_importance
from pliant.store.read import SliceRun, Store, aligned_buffer, open_store
from pliant.store.store_files import DenseTable, verify
from tests.tiny import random_tensors, tiny_spec, write_model

PADDED = {"head_dim 8": {}, "odd hidden": {"hidden": 36, "embedding": 36, "ffn": 52}}


@pytest.fixture(scope="module")
def minilm_store(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    out = build(open_checkpoint(minilm), tmp_path_factory.mktemp("stores") / "minilm")
    with open_store(out) as store:
        yield store


@pytest.fixture(scope="module")
def tiny_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder = tmp_path_factory.mktemp("stores")
    model = write_model(folder / "model", tiny_spec(widths=(1, 2, 4)))
    with open_store(build(open_checkpoint(model), folder / "store")) as store:
        yield store


@pytest.fixture(scope="module")
def wide_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Slices of whole blocks, four tiers."""
    folder = tmp_path_factory.mktemp("stores")
    spec = tiny_spec(hidden=160, embedding=160, ffn=160 * 4, n_heads=5, widths=(1, 2, 4))
    with open_store(build(open_checkpoint(write_model(folder / "model", spec)), folder / "store")) as store:
        assert store.geometry.plane_bytes >= 4096
        yield store


def load(store: Store, layer: int, part: int) -> np.ndarray:
    """All slices of a part as uint8 [slices, bytes]."""
    run = SliceRun(layer, part, 0, store.spec.n_heads)
    payload = np.empty(store.run_bytes(run), np.uint8)
    store.read(run, payload)
    return payload.reshape(store.spec.n_heads, -1)


def decoded(store: Store, layer: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """A layer's weights [slices, groups, 32, 16] at `bits`, outliers applied, and where those lie."""
    resident, geometry = store.resident(layer), store.geometry
    planes = np.stack([load(store, layer, q) for q in range(bits)])
    values = decode(planes.reshape(bits, -1, 64), resident.codebooks[bits])
    values = values.reshape(store.spec.n_heads, -1).copy()
    is_outlier = np.zeros(values.shape, bool)
    starts = column_group_starts(geometry)
    for s in range(store.spec.n_heads):
        for c in range(geometry.column_groups):
            mine = slice(resident.outlier_rows[s, c], resident.outlier_rows[s, c + 1])
            places = starts[c] + resident.outlier_offsets[mine].astype(int)
            assert (np.diff(places) > 0).all()
            assert (places < starts[c + 1]).all()
            values[s, places] = resident.outlier_values[mine]
            is_outlier[s, places] = True
    shape = (store.spec.n_heads, geometry.groups, 32, 16)
    return values.reshape(shape), is_outlier.reshape(shape)


def layer_weights(checkpoint: Checkpoint, layer: int) -> dict[str, np.ndarray]:
    return {name: checkpoint.tensor(f"layers.{layer}.{name}.weight") for name in LINEARS}


@pytest.mark.parametrize("bits", [1, 3, 6])
def test_every_decoded_weight_is_its_centroid_or_its_exact_self(
    minilm: Path, minilm_store: Store, bits: int
) -> None:
    """The promise of the format, for each of the 1.8 million weights of a real layer."""
    weights, _ = cut(minilm_store.spec, layer_weights(open_checkpoint(minilm), 3))
    values, is_outlier = decoded(minilm_store, 3, bits)
    entry, codebook = minilm_store.manifest.layers[3], minilm_store.resident(3).codebooks[bits]
    np.testing.assert_array_equal(values[is_outlier], weights[is_outlier])
    assert np.isin(values[~is_outlier], codebook).all()
    assert np.count_nonzero(is_outlier) == entry.n_outliers
    error = np.square(values - weights, dtype=np.float64).sum() / weights.size / weights.var(dtype=np.float64)
    assert error == pytest.approx(entry.error[bits - 1], rel=1e-6)


def test_outliers_and_padding_hold_code_zero(tiny_store: Store) -> None:
    """A kernel that decodes in registers adds an outlier as its difference from centroid 0, unseen."""
    _, is_outlier = decoded(tiny_store, 0, 6)
    planes = np.stack([load(tiny_store, 0, q) for q in range(6)]).reshape(6, -1, 64)
    codes = unpack_planes(planes).reshape(is_outlier.shape)
    assert is_outlier.any()
    assert not codes[is_outlier].any()


def test_minilm_has_more_outliers_than_bert_but_few(minilm_store: Store) -> None:
    """The paper finds 0.14-0.17 % on BERT-base; resident memory grows with this share."""
    layers = minilm_store.manifest.layers
    share = sum(e.n_outliers for e in layers) / sum(e.n_weights for e in layers)
    assert 0.003 < share < 0.008
    assert minilm_store.resident_bytes < 0.5e6


@pytest.mark.parametrize("changes", PADDED.values(), ids=PADDED)
@pytest.mark.parametrize("quantizer", get_args(Quantizer))
def test_padding_decodes_to_zero(changes: dict[str, int], quantizer: Quantizer, tmp_path: Path) -> None:
    """A padded row that decoded to a small centroid would leak into real sums."""
    spec = tiny_spec(**changes)
    checkpoint = open_checkpoint(write_model(tmp_path / "model", spec))
    with open_store(build(checkpoint, tmp_path / "store", quantizer)) as store:
        weights, is_padding = cut(spec, layer_weights(checkpoint, 1))
        for bits in (1, 4):
            values, is_outlier = decoded(store, 1, bits)
            assert not values[:, is_padding].any()
            np.testing.assert_array_equal(values[is_outlier], weights[is_outlier])
        d, resident = spec.hidden, store.resident(1)
        np.testing.assert_array_equal(resident.output_bias[:d], checkpoint.tensor("layers.1.output.bias"))
        key_bias = checkpoint.tensor("layers.1.key.bias").reshape(spec.n_heads, -1)
        at = store.geometry.head_dim
        np.testing.assert_array_equal(resident.qkv_bias[:, at : at + spec.head_dim], key_bias)
        np.testing.assert_array_equal(
            resident.output_norm[0, :d], checkpoint.tensor("layers.1.output_norm.weight")
        )
        assert not resident.output_norm[:, d:].any()


@pytest.mark.parametrize("precision", ["F32", "F16"])
def test_full_fidelity_is_the_checkpoint_bit_for_bit(precision: str, tmp_path: Path) -> None:
    """Full fidelity is not a seventh approximation."""
    spec = tiny_spec(precision=precision)
    model = tmp_path / "model"
    tokens = write_model(tmp_path / "tokens", tiny_spec())
    save_checkpoint(model, spec, random_tensors(spec), precision, tokens)  # type: ignore[arg-type]
    checkpoint = open_checkpoint(model)
    with open_store(build(checkpoint, tmp_path / "store")) as store:
        dtype = {"F32": np.float32, "F16": np.float16}[precision]
        full = load(store, 0, FULL).view(dtype).astype(np.float32)
        weights, _ = cut(spec, layer_weights(checkpoint, 0))
        np.testing.assert_array_equal(full, weights.reshape(spec.n_heads, -1))


def test_bfloat16_is_kept_in_two_bytes_and_refuses_what_does_not_fit() -> None:
    """A silently rounded weight is not full fidelity."""
    raw = to_precision(np.array([1.0, -0.5], np.float32), "BF16")
    np.testing.assert_array_equal(raw, np.array([0x3F80, 0xBF00], np.uint16))
    for precision in ("BF16", "F16"):
        with pytest.raises(StoreError, match=f"not exact in {precision}"):
            to_precision(np.array([0.1], np.float32), precision)  # type: ignore[arg-type]


def test_files_open_with_the_safetensors_library(tiny_store: Store) -> None:
    """The containers are the ecosystem's, readable without pliant; every run lies on a block."""
    for path in sorted(tiny_store.path.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            names = [n for n in file.keys() if not n.startswith("pad.")]  # noqa: SIM118
            arrays = {n: file.get_tensor(n) for n in names}
        if path.name.startswith("layer-00"):
            assert names == sorted([*(f"plane.{q}.{s}" for q in range(6) for s in (0, 1, 2)), "full"])
            for q in range(6):
                planes = np.concatenate([arrays[f"plane.{q}.{s}"] for s in (0, 1, 2)])
                np.testing.assert_array_equal(planes, load(tiny_store, 0, q))
            np.testing.assert_array_equal(arrays["full"], load(tiny_store, 0, FULL))
    assert verify(tiny_store.path) == tiny_store.manifest


def test_every_shard_lies_where_the_format_says(tiny_store: Store) -> None:
    """docs/format.md, "Layer files", written out by hand for slices 0 | 1 | 2, 3 of a tiny model."""
    cells = [(q, 0, 1) for q in (5, 4, 3, 2, 1, 0)]
    cells += [(0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 2, 2)]
    cells += [(2, 2, 2), (2, 1, 1), (3, 1, 1), (3, 2, 2), (4, 2, 2), (4, 1, 1), (5, 1, 1), (5, 2, 2)]
    for layer in tiny_store.manifest.layers:
        data = (tiny_store.path / layer.file).read_bytes()
        at = 8 + int.from_bytes(data[:8], "little")
        assert at % 4096 == len(data) % 4096 == 0
        for part, first, count in [*cells, (FULL, 0, 4)]:
            entry = layer.parts[part]
            for i in range(count):
                assert entry.offsets[first + i] == at + i * entry.slice_bytes
                shard = data[entry.offsets[first + i] :][: entry.slice_bytes]
                assert f"{xxhash.xxh3_64_intdigest(shard):016x}" == entry.xxh3[first + i]
            at += count * entry.slice_bytes
            at += -at % 4096
        assert at == len(data)


@given(st.data())
def test_planned_reads_bring_in_every_run_and_nothing_twice(tiny_store: Store, data: st.DataObject) -> None:
    """Whatever shards a plan asks for, the merged reads deliver exactly their bytes."""
    M = tiny_store.spec.n_heads
    runs = data.draw(
        st.lists(
            st.integers(0, M - 1).flatmap(
                lambda first: st.builds(
                    SliceRun,
                    st.integers(0, 1),
                    st.integers(0, FULL),
                    st.just(first),
                    st.integers(1, M - first),
                )
            ),
            max_size=8,
        )
    )
    extents = tiny_store.plan_reads(runs)
    pieces = [
        (r.layer, r.part, s) for e in extents for r in e.runs for s in range(r.first, r.first + r.count)
    ]
    assert set(pieces) == {(r.layer, r.part, s) for r in runs for s in range(r.first, r.first + r.count)}
    assert len({r for e in extents for r in e.runs}) == sum(len(e.runs) for e in extents)
    for a, b in pairwise(extents):
        assert (a.layer, a.offset + a.n_bytes) < (b.layer, b.offset) or a.layer < b.layer
    for extent in extents:
        buffer = aligned_buffer(extent.n_bytes + 4096)
        starts = tiny_store.read_extent(extent, buffer, 4096)
        for run, start in zip(extent.runs, starts, strict=True):
            expected = load(tiny_store, run.layer, run.part)[run.first : run.first + run.count]
            got = buffer[start : start + tiny_store.run_bytes(run)].reshape(run.count, -1)
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_a_layer_at_a_uniform_bitwidth_is_one_read(minilm_store: Store, k: int) -> None:
    """STI's IO jobs are one per layer; the planes were laid out for that."""
    runs = [SliceRun(2, q, 0, minilm_store.spec.n_heads) for q in range(k)]
    (extent,) = minilm_store.plan_reads(runs)
    assert extent.n_bytes == sum(map(minilm_store.run_bytes, runs))


@given(st.data())
def test_the_planner_counts_the_reads_that_the_store_makes(wide_store: Store, data: st.DataObject) -> None:
    """A plan that counts fewer misses its target by a latency a read, one that counts more wastes them."""
    M = wide_store.spec.n_heads
    needs = st.lists(st.integers(0, 2**M - 1), min_size=FULL + 1, max_size=FULL + 1)
    runs = [
        SliceRun(1, part, s, 1)
        for part, mask in enumerate(data.draw(needs))
        for s in range(M)
        if mask >> s & 1
    ]
    assert len(wide_store.plan_reads(runs)) == count_reads(store_shape(wide_store.spec), runs)


@pytest.mark.parametrize("bits", [(2,), (2, 4), (3, 32), (5,)])
def test_the_planner_counts_the_reads_of_a_store_of_some_bits(
    bits: tuple[int, ...], wide_store: Store, tmp_path: Path
) -> None:
    """Parts that were left out make others adjacent."""
    model = write_model(tmp_path / "model", wide_store.spec)
    rng = np.random.default_rng(0)
    with open_store(build(open_checkpoint(model), tmp_path / "store", bits=bits)) as store:
        shape, (first, *_) = store_shape(store.spec, bits), store.manifest.layers
        start = min(min(part.offsets) for part in first.parts)
        for part in first.parts:
            assert [at + start for at in shape.offsets[part.part]] == list(part.offsets)
        for _ in range(200):
            cells = [(p.part, s) for p in first.parts for s in range(5) if rng.integers(2)]
            runs = [SliceRun(1, part, s, 1) for part, s in cells]
            assert len(store.plan_reads(runs)) == count_reads(shape, runs)


def test_six_bits_a_weight_hold_all_bitwidths(minilm_store: Store) -> None:
    """The paper's store of k = 2..6 takes 20 bits a weight."""
    parts = minilm_store.manifest.layers[0].parts
    bits = sum(8 * p.slice_bytes * len(p.xxh3) for p in parts if p.part != FULL)
    assert bits == 6 * minilm_store.manifest.layers[0].n_weights


def test_an_unaligned_buffer_is_refused(tiny_store: Store) -> None:
    """O_DIRECT would fail with a bare EINVAL."""
    buffer = aligned_buffer(1 << 20)
    (extent,) = tiny_store.plan_reads([SliceRun(0, FULL, 0, 4)])
    with pytest.raises(StoreError, match="aligned"):
        tiny_store.read_extent(extent, buffer, 64)
    with pytest.raises(StoreError, match="aligned"):
        tiny_store.read_extent(extent, buffer[:4096])


def test_runs_outside_the_store_are_refused(tiny_store: Store) -> None:
    """An index past the end must not read a neighbour's bytes."""
    buffer = np.empty(1 << 20, np.uint8)
    for run in (
        SliceRun(2, 0, 0, 1),
        SliceRun(-1, 0, 0, 1),
        SliceRun(0, 7, 0, 1),
        SliceRun(0, 0, 3, 2),
        SliceRun(0, 0, -1, 1),
    ):
        with pytest.raises(StoreError):
            tiny_store.read(run, buffer)


def test_a_store_offers_only_the_bits_it_was_built_with(tiny_model: object, tmp_path: Path) -> None:
    """Leaving out full fidelity is how a store becomes small."""
    checkpoint = open_checkpoint(tiny_model())  # type: ignore[operator]
    with open_store(build(checkpoint, tmp_path / "s", bits=(2, 4))) as store:
        assert store.manifest.bits == (2, 4)
        load(store, 0, 3)
        for part in (4, FULL):
            with pytest.raises(StoreError, match="offers 2 layers at 2,4 bits"):
                load(store, 0, part)
    for bits in ((), (32,), (0, 2), (4, 2), (7,)):
        with pytest.raises(StoreError, match="ascending bitwidths"):
            build(checkpoint, tmp_path / "t", bits=bits)


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
def test_embeddings_and_head_are_the_checkpoints(family: str, tiny_model: object, tmp_path: Path) -> None:
    """What is not quantized must arrive unchanged, whatever tables a family has."""
    checkpoint = open_checkpoint(tiny_model(family))  # type: ignore[operator]
    with open_store(build(checkpoint, tmp_path / "s")) as store:
        e, head = store.embeddings, store.head
        assert isinstance(e.word, DenseTable)
        ids = np.array([5, 0, 63])
        e.check(ids)
        np.testing.assert_array_equal(e.word.decode(ids), checkpoint.tensor("embeddings.word")[ids])
        np.testing.assert_array_equal(e.position, checkpoint.tensor("embeddings.position"))
        np.testing.assert_array_equal(e.norm[1], checkpoint.tensor("embeddings.norm.bias"))
        assert (e.types is None) == (family == "distilbert")
        assert (e.project is None) == (family != "electra")
        assert head.dense is not None
        assert head.classifier is not None
        np.testing.assert_array_equal(head.classifier.weight, checkpoint.tensor("head.classifier.weight"))
        np.testing.assert_array_equal(head.dense.bias, checkpoint.tensor("head.dense.bias"))


def test_a_quantized_word_table_stays_in_codes(tmp_path: Path) -> None:
    """The shipped model has one; decoding it in the store would multiply its size by five."""
    spec: ModelSpec = tiny_spec()
    tensors = random_tensors(spec)
    table = quantize_table(tensors["embeddings.word"])
    tokens = write_model(tmp_path / "tokens", spec)
    save_checkpoint(tmp_path / "model", spec, tensors, "F16", tokens, table)
    with open_store(build(open_checkpoint(tmp_path / "model"), tmp_path / "store")) as store:
        ids = np.arange(spec.vocab)
        store.embeddings.check(ids)
        np.testing.assert_array_equal(store.embeddings.word.decode(ids), table.decode_all())
        assert not isinstance(store.embeddings.word, DenseTable)


def test_the_same_checkpoint_gives_the_same_store(tiny_model: object, tmp_path: Path) -> None:
    """Identity names content: profiles and caches are keyed by it."""
    checkpoint = open_checkpoint(tiny_model())  # type: ignore[operator]
    a, b = (open_store(build(checkpoint, tmp_path / name)).identity for name in "ab")
    c = open_store(build(checkpoint, tmp_path / "c", "equal-population")).identity
    assert a == b != c


def test_importance_is_added_without_touching_weights(tiny_model: object, tmp_path: Path) -> None:
    """Importance needs a dev set and comes later; the store's identity must outlive it."""
    out = build(open_checkpoint(tiny_model()), tmp_path / "s")  # type: ignore[operator]
    with open_store(out) as before:
        importance = ((0.5, 0.25, 0.125, 1 / 3), (0.0, 1.0, -1.0, 2.0))
        put_importance(out, importance)
        with open_store(out) as after:
            assert after.manifest.importance == importance
            assert after.identity == before.identity
    with pytest.raises(StoreError, match="2 rows of 4 numbers"):
        put_importance(out, ((1.0,),))
    assert json.loads((out / "manifest.json").read_text())["importance"][1] == [0.0, 1.0, -1.0, 2.0]


def test_threads_that_write_the_manifest_do_not_disturb_each_other(
    tiny_model: object, tmp_path: Path
) -> None:
    """Each write has a temporary file of its own; threads, and containers, have one process number."""
    out = build(open_checkpoint(tiny_model()), tmp_path / "s")  # type: ignore[operator]
    rows = [((i / 8,) * 4, (0.0,) * 4) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda row: [put_importance(out, row) for _ in range(10)], rows))
    with open_store(out) as store:
        assert store.manifest.importance in rows
    assert not list(out.glob(".manifest*"))


def test_progress_ends_at_its_total(tiny_model: object, tmp_path: Path) -> None:
    """A bar that stops at 90 % looks like a hang."""
    seen: list[BuildProgress] = []
    build(open_checkpoint(tiny_model()), tmp_path / "s", on_progress=seen.append)  # type: ignore[operator]
    assert [p.done for p in seen] == list(range(seen[-1].total + 1))


def test_a_file_system_in_memory_is_not_called_direct(tiny_model: object) -> None:
    """tmpfs accepts O_DIRECT and answers from memory: calling that cold would make every delay fiction."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or not os.access(memory, os.W_OK):
        pytest.skip("no tmpfs at /dev/shm")
    out = memory / f"pliant-test-{os.getpid()}"
    try:
        with open_store(build(open_checkpoint(tiny_model()), out)) as store:  # type: ignore[operator]
            assert not store.is_direct
            load(store, 1, 5)
    finally:
        for path in out.iterdir():
            path.unlink()
        out.rmdir()


def test_a_closed_store_reads_no_more(tiny_model: object, tmp_path: Path) -> None:
    """Reading from a closed descriptor could read another file."""
    with open_store(build(open_checkpoint(tiny_model()), tmp_path / "s")) as store:  # type: ignore[operator]
        pass
    with pytest.raises(StoreError, match="closed"):
        load(store, 0, 0)
