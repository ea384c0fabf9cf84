"""What a device keeps of its models from plan to plan."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pliant.api.open_encoder import open_encoder
from pliant.cluster.member.local_stage_builder import LocalStageBuilder
from pliant.cluster.member.shard import Shard
from pliant.ir.partition import Partition, Share
from pliant.ir.program import Compute
from pliant.kernels.emit.isa import host_isa
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.plan.split.split_program import split
from tests.cluster.sources import RandomSource, random_source
from tests.plan.splits import bert

TOKENS = 8


@pytest.fixture
def sources() -> tuple[RandomSource, RandomSource]:
    """Two models whose weights have the same names and sizes."""
    spec = bert(n_layers=2)
    one, other = random_source(spec, 0), random_source(spec, 1)
    return one, RandomSource(spec, other.tensors, "other")


def _half(source: RandomSource, mode: str) -> Partition:
    spec = source.spec
    n, f = spec.n_heads, spec.ffn
    shares = (Share("a", n // 2, 4, f // 2), Share("b", n - n // 2, 4, f - f // 2))
    if mode == "ws":
        shares = (Share("a", n // 2, 4, 0), Share("b", n - n // 2, 4, 0))
    return Partition(mode, "a", shares, TOKENS)  # type: ignore[arg-type]


def test_another_models_weights_are_not_kept_for_having_the_same_names(
    sources: tuple[RandomSource, RandomSource], tmp_path: Path
) -> None:
    """Two fine-tuned versions of one model would otherwise both stay, whichever is needed."""
    library = Library(host_isa(), tmp_path)
    with ThreadPool(1, library) as pool:
        holding = LocalStageBuilder("b", library, pool)
        first = holding.prepare(sources[0], _half(sources[0], "ws"))
        one_bytes = holding.weight_bytes
        holding.prepare(sources[1], _half(sources[1], "ws"))
        assert holding.weight_bytes == 2 * one_bytes
        holding.keep([first])
        assert holding.weight_bytes == one_bytes


def test_weights_that_are_replaced_in_place_are_gone_before_others_are_read(
    sources: tuple[RandomSource, RandomSource], tmp_path: Path
) -> None:
    """For a device without memory for both: while reading, no more is held than the new plan needs."""
    library = Library(host_isa(), tmp_path)
    with ThreadPool(1, library) as pool:
        holding = LocalStageBuilder("b", library, pool)
        held: list[int] = []

        class Watched:
            spec, identity = sources[0].spec, sources[0].identity
            input, head, release = sources[0].input, sources[0].head, sources[0].release

            @property
            def whole(self) -> "Watched":
                return self

            def tensor(self, name: str, /) -> object:
                held.append(holding.weight_bytes)
                return sources[0].tensor(name)

        watched = Watched()
        old = holding.prepare(watched, _half(sources[0], "ws"))  # type: ignore[arg-type]
        old_bytes = holding.weight_bytes
        held.clear()
        new = holding.replace(watched, _half(sources[0], "1d"))  # type: ignore[arg-type]
        assert isinstance(old, Shard)
        assert isinstance(new, Shard)
        assert held
        assert max(held) <= new.weight_bytes == holding.weight_bytes < old_bytes
        assert old.weight_bytes == 0


def test_all_lengths_share_the_weights_of_input_and_head(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    """The head of each length had its own copy, and all of them stayed after the model was closed."""
    library = Library(host_isa(), tmp_path)
    encoder = open_encoder(tiny_model("bert"), tmp_path)
    with ThreadPool(1, library) as pool:

        def answer(builder: LocalStageBuilder, tokens: int) -> np.ndarray:
            partition = Partition("ws", "p", (Share("p", encoder.spec.n_heads, tokens),), tokens)
            shard = builder.prepare(encoder, partition)
            shard.begin([encoder.prepare({"ids": np.arange(tokens)})])
            for step in split(encoder.spec, partition).steps:
                assert isinstance(step.work, Compute)
                shard.compute(0, step.work)
            return shard.answers()[0]

        def end_bytes(builder: LocalStageBuilder) -> int:
            return builder.bytes_of(encoder) - builder.weight_bytes

        builder, lengths = LocalStageBuilder("p", library, pool), (5, 9, 7)
        answers = [answer(builder, tokens) for tokens in lengths[:1]]
        one_bytes = end_bytes(builder)
        answers += [answer(builder, tokens) for tokens in lengths[1:]]
        of_positions = sum(4 * encoder.spec.hidden * tokens for tokens in lengths[1:])
        assert end_bytes(builder) == one_bytes + of_positions
        for tokens, found in zip(lengths, answers, strict=True):
            np.testing.assert_array_equal(found, answer(LocalStageBuilder("p", library, pool), tokens))
        builder.keep(())
        assert builder.bytes_of(encoder) == 0
        np.testing.assert_array_equal(answer(builder, 5), answers[0])
