"""The memory that a session on submodels adds to its process."""

from pliant.models.word_table import QuantizedTable
from pliant.run.memory_use import MemoryUse, measure_part, rss_bytes, scratch_part
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.plans.memory_split import MemoryOverhead
from pliant.run.submodel.weight_memory import WeightMemory


def memory_use(
    most_bytes: int | None, weights: WeightMemory, engine: Engine, overhead: MemoryOverhead
) -> MemoryUse:
    """The planned bytes, over all plans made so far, and the bytes in memory now."""
    preload, working = weights.blocks
    encoder, word = engine.encoder, engine.store.embeddings.word
    table = word.codes if isinstance(word, QuantizedTable) else word.values
    return MemoryUse(
        most_bytes,
        (
            measure_part("weights kept (preload)", weights.preload_bytes, preload),
            measure_part("weights read (working)", weights.working_bytes, [working]),
            measure_part("activations", overhead.arena_bytes, [encoder.arena]),
            measure_part("codebooks, embeddings, head", overhead.fixed_bytes, encoder.fixed_arrays),
        ),
        (measure_part("word table (mapped file)", table.nbytes, [table]), scratch_part(engine.pool)),
        rss_bytes(),
    )
