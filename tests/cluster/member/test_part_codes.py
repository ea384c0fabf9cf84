"""Shares that stay in a store's codes: the numbers of the store decoded, in the bytes that were planned."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pliant.cluster.member.shard import ModelShards
from pliant.errors import InputError, ModelError
from pliant.ir.partition import Mode, Partition, Share
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_architecture import PreparedInput
from pliant.models.encoder.encoder_source import Encoder
from pliant.plan.split.activation_bytes import activation_bytes
from pliant.plan.split.stage_graphs import weight_bytes
from pliant.store.store_encoder import open_stored_encoder
from tests.cluster.coded import small_store
from tests.cluster.in_process import run_local
from tests.plan.splits import MODES, partition

TOKENS = 9


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_store(tmp_path_factory.mktemp("coded"))


@pytest.fixture(scope="module")
def encoder(path: Path) -> Encoder:
    return open_stored_encoder(path)


def prepared(encoder: Encoder) -> PreparedInput:
    return encoder.prepare(encoder.sample(TOKENS))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_a_coded_split_answers_as_the_decoded_store_split_the_same_way(
    path: Path, encoder: Encoder, library: Library, mode: Mode, seed: int
) -> None:
    """Codebooks, planes and outliers are the store's own, whatever heads, columns and tiles a device has.

    What is too small to be coded is at full fidelity: nearer to the model than was asked.
    """
    split = partition(encoder.spec, mode, 3, TOKENS, seed)
    bits = (3, 5, 6)[seed]
    inputs = [prepared(encoder)]
    wanted = run_local(open_stored_encoder(path, bits=bits), split, inputs, library).answers[0]
    whole = run_local(encoder, split, inputs, library).answers[0]
    coded = replace(split, bits=(bits,) * encoder.spec.n_layers)
    got = run_local(encoder, coded, inputs, library).answers[0]
    assert np.abs(got - wanted).max() <= max(1e-5, 0.05 * np.abs(whole - wanted).max())


def test_layers_of_different_bits_are_those_of_the_plan(encoder: Encoder, library: Library) -> None:
    """More bits where there is memory: the answer is the same however the layers are cut."""
    inputs = [prepared(encoder)]
    splits = (replace(partition(encoder.spec, mode, 3, TOKENS, 4), bits=(6, 2, 4)) for mode in ("ws", "1d"))
    one, other = (run_local(encoder, split, inputs, library).answers[0] for split in splits)
    np.testing.assert_allclose(one, other, atol=1e-4)
    swapped = replace(partition(encoder.spec, "ws", 3, TOKENS, 4), bits=(6, 4, 2))
    assert np.abs(run_local(encoder, swapped, inputs, library).answers[0] - one).max() > 1e-3


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_held_is_what_was_planned(
    encoder: Encoder, library: Library, pool: ThreadPool, mode: Mode, seed: int
) -> None:
    """A device that may hold a twelfth of the model must not find out later that it holds more."""
    split = replace(partition(encoder.spec, mode, 3, TOKENS, seed), bits=(6, 3, 2))
    planned = weight_bytes(encoder.spec, split)
    for device in split.participants:
        shard = ModelShards(device, encoder, library, pool).prepare(split)
        held = shard.weight_bytes
        if device in (*split.participants, split.primary):
            assert activation_bytes(encoder.spec, split)[device] == shard.activation_bytes
        assert held <= planned[device]
        assert held >= 0.8 * planned[device] - 4096


def test_other_bits_are_other_weights(encoder: Encoder, library: Library, pool: ThreadPool) -> None:
    """A plan of 3 bits beside one of 6 must not read its codes."""
    split = partition(encoder.spec, "ws", 1, TOKENS, 0)
    shards = ModelShards("d0", encoder, library, pool)
    six, three = (shards.prepare(replace(split, bits=(bits,) * 3)) for bits in (6, 3))
    assert three.weight_bytes < 0.7 * six.weight_bytes
    shards.keep(three)
    assert shards.weight_bytes == three.weight_bytes


def test_a_model_that_is_no_store_has_no_codes(encoder: Encoder, library: Library, pool: ThreadPool) -> None:
    """The error says what to do."""
    plain = replace(encoder, weights=_Plain(encoder))
    split = replace(partition(encoder.spec, "ws", 1, TOKENS, 0), bits=(3, 3, 3))
    with pytest.raises(ModelError, match="pliant pack"):
        ModelShards("d0", plain, library, pool).prepare(split)


class _Plain:
    """Weights by name alone."""

    def __init__(self, encoder: Encoder) -> None:
        self.view, self.rows, self.release = encoder.tensor, encoder.weights.rows, encoder.release
        self.identity = encoder.identity


def test_partitions_in_bits_that_do_not_exist_are_refused() -> None:
    """A lying primary must not make a worker ask for plane 9."""
    with pytest.raises(InputError, match="1 to 6"):
        Partition("ws", "a", (Share("a", 1, 1),), 1, bits=(9,))
