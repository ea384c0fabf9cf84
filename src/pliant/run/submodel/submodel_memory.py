"""The memory that a session on submodels adds to its process."""

from dataclasses import replace

from pliant.errors import BudgetError
from pliant.models.word_table import QuantizedTable
from pliant.plan.plan import PlanMemory
from pliant.run.memory_use import MemoryUse, measure_part, scratch_part
from pliant.run.submodel.engine import Engine
from pliant.run.submodel.plans.memory_split import MemoryOverhead
from pliant.run.submodel.plans.submodel_planner import SessionOptions
from pliant.run.submodel.weight_memory import WeightMemory
from pliant.system import rss_bytes


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


def check_limit(memory: PlanMemory, most_bytes: int | None) -> None:
    """Raise BudgetError if a plan of `memory` exceeds the session's limit."""
    if most_bytes is not None and memory.total_bytes > most_bytes:
        raise BudgetError(
            f"this takes {memory.total_bytes} bytes, {memory.preload_bytes} of them kept between runs, but "
            f"the session's memory is {most_bytes}: keep less, or give at least {memory.total_bytes} bytes."
        )


def with_half(options: SessionOptions, terms: SessionOptions, kept_bytes: int) -> SessionOptions:
    """The options with half the preload buffer of `terms`, in which `kept_bytes` are held.

    Under a memory limit, the working buffer gets none of what is freed.
    """
    half = min(terms.preload_bytes or 0, kept_bytes) // 2  # the requested size may exceed the model's size
    if options.memory_bytes is not None:
        options = replace(options, most_working_bytes=terms.working_bytes or 0)
    if options.preload_bytes is None:  # the planner chooses it, and for a longer input again
        return replace(options, most_preload_bytes=half)
    return replace(options, preload_bytes=half)
