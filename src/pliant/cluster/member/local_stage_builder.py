"""The stages and weights that one device holds for the models of its plans."""

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import final

from pliant.cluster.member.measure_member import measure_member
from pliant.cluster.member.measure_message_cost import measure_message_cost
from pliant.cluster.member.run_executor import StageRunner
from pliant.cluster.member.shard import ModelShards, Shard
from pliant.ir.capability import Capability
from pliant.ir.partition import Partition
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.encoder.encoder_source import EncoderSource
from pliant.profile.system_memory import free_memory_bytes
from pliant.run.emulated_device import EmulatedDevice
from pliant.run.memory_use import MemoryNeed, MemoryUse, scratch_part
from pliant.system import rss_bytes, trim_heap

SPARE_BYTES = 48 << 20
"""Memory kept free: for reading a layer, for the input and the head, and for other processes. When
other processes use it, models release as much: without a reserve, the kernel's OOM killer ends a process.
"""


@final
class LocalStageBuilder:
    """Builds this member's stages of any model on one thread pool; keeps what plans still need."""

    def __init__(
        self,
        device: str,
        library: Library,
        pool: ThreadPool,
        emulated: EmulatedDevice | None = None,
        bound_bytes: Callable[[], int] | None = None,
    ) -> None:
        self._device, self._library, self._pool = device, library, pool
        self.emulated = emulated or EmulatedDevice()
        self._bound_bytes = bound_bytes
        self.free_bytes = free_bytes_for_models(self) if bound_bytes is None else bound_bytes
        self._shards: dict[str, ModelShards] = {}

    def prepare(self, source: EncoderSource, partition: Partition) -> StageRunner:
        return self._shards_of(source).prepare(partition, spec=source.spec)

    def replace(self, source: EncoderSource, partition: Partition) -> StageRunner:
        for identity, shards in self._shards.items():
            if identity != source.whole.identity:
                shards.keep()
        return self._shards_of(source).replace(partition, source.spec)

    def measure(self, source: EncoderSource, tokens: int, *, is_primary: bool = False) -> Capability:
        found = measure_member(
            source,
            tokens,
            self._library,
            self._pool,
            self.free_bytes(),
            ends=self._shards_of(source) if is_primary else None,
            emulated=self.emulated,
        )
        handed = measure_message_cost(4 * tokens * source.spec.hidden)
        trim_heap()  # reading and packing a layer in several shares used memory that is now free
        return replace(found, send=handed.send, take=handed.take)

    def keep(self, runners: Collection[StageRunner]) -> None:
        used = [runner for runner in runners if isinstance(runner, Shard)]
        for identity, shards in self._shards.items():
            shards.keep(*(shard for shard in used if shard.model == identity))

    @property
    def weight_bytes(self) -> int:
        return sum(shards.weight_bytes for shards in list(self._shards.values()))

    @property
    def activation_bytes(self) -> int:
        return sum(shards.activation_bytes for shards in list(self._shards.values()))

    def bytes_of(self, source: EncoderSource) -> int:
        """Return the bytes of a model's weights held here, including its input and head."""
        shards = self._shards.get(source.whole.identity)
        return 0 if shards is None else shards.weight_bytes + shards.end_bytes

    def need_of(self, source: EncoderSource) -> MemoryNeed:
        """Return the bytes of a model's weights held here, and this device's limit if one was given. Fast."""
        return MemoryNeed(self.bytes_of(source), None if self._bound_bytes is None else self._bound_bytes())

    def memory_of(self, source: EncoderSource) -> MemoryUse:
        """Return a model's memory use here, and this device's limit for weights if one was given."""
        shards = self._shards.get(source.whole.identity)
        bound = self.need_of(source).most_bytes
        parts = () if shards is None else shards.memory()
        return MemoryUse(bound, parts, (scratch_part(self._pool),), rss_bytes())

    def _shards_of(self, source: EncoderSource) -> ModelShards:
        """Return the `ModelShards` of a model; its submodels share them."""
        if source.whole.identity not in self._shards:
            self._shards[source.whole.identity] = ModelShards(
                self._device, source.whole, self._library, self._pool
            )
        return self._shards[source.whole.identity]


def free_bytes_for_models(builder: LocalStageBuilder) -> Callable[[], int]:
    """Return a function for models' available memory: free memory minus a reserve, plus what they hold."""

    def free_bytes() -> int:
        held_bytes = builder.weight_bytes + builder.activation_bytes
        return max(0, free_memory_bytes() + held_bytes - SPARE_BYTES)

    return free_bytes
