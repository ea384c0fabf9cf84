"""A recurrent model in memory: weights, compiled forms, and their input and output arrays."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import final

import numpy as np

from pliant.arrays import Float
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import CallEntry, image_kernels
from pliant.compiler.executable.kernel_addresses import load_kernels
from pliant.compiler.executable.recurrent_stages import describe_calls, recurrent_form
from pliant.compiler.executable.stage import BoundStage, StageForm
from pliant.errors import BudgetError
from pliant.ir.executable import ARENA
from pliant.ir.graph import Graph
from pliant.kernels.runtime.aligned_memory import aligned_bytes, aligned_floats
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import ThreadPool
from pliant.models.recurrent.recurrent_graph import (
    LENGTHS,
    LOGITS,
    POOLED,
    STARTS,
    STATES,
    VECTORS,
    recurrent_graph,
)
from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.plan.memory_shares import MemoryOption
from pliant.run.arena import Arena
from pliant.run.memory_use import MemoryPart, measure_part
from pliant.run.process_memory import MemoryBudget

LEAST_STEPS = 64
"""Steps of the smallest form, which is made when the model is opened, and the fewest for each text of a form
for several texts, so that there are few forms.
"""
_MOST_ROWS = 4096
"""Words of all texts of a batch: 16 to 64 texts. More at once are not faster per text."""
_Size = tuple[int, int]
"""Steps, of all texts together, and texts of a form."""


@final
class RecurrentRunner:
    """Runs the answers of a session; one caller at a time.

    `memory` limits its memory, or is a budget that models share; with a shared budget the model is in memory
    while the budget has room for it (`load`, `hold`). `name` is used in error messages. `loading_s` is the
    expected time of `load`, from the last load; 0 while the model is in memory. Texts that run together have
    at most `most_rows` words, where each text counts as LEAST_STEPS words or more: 0 with a shared budget,
    where room for several texts would be taken from other models. Raises BudgetError if the weights and the
    activations of the shortest form exceed the memory.
    """

    def __init__(
        self,
        source: RecurrentSource,
        library: Library,
        pool: ThreadPool,
        name: str,
        memory: int | MemoryBudget | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.source, self.name, self.pool = source, name, pool
        self._library, self._clock = library, clock
        self._most = None if isinstance(memory, MemoryBudget) else memory
        self._shared = memory if isinstance(memory, MemoryBudget) else None
        self._target = Target(library.isa, pool.n_threads)
        self._arena = Arena()
        self._weights: dict[str, np.ndarray] = {}
        self._forms: dict[_Size, tuple[StageForm, dict[str, int]]] = {}
        self._stages: dict[_Size, BoundStage] = {}
        self._needs: dict[int, int] = {}
        self.vectors = self.states = self.numbers = np.zeros((0, 0), np.float32)
        self._ranges = np.zeros((2, 0), np.int32)
        self.most_rows = _MOST_ROWS if self._shared is None else 0
        self._needed_bytes, self._load_s, self._cold_s, self.loading_s = 0, 0.0, 0.0, 0.0
        start_s = clock()
        try:
            if self._shared is not None:  # load it as later loads do, to measure their time
                self.source = source.with_weights()
            self.reserve(LEAST_STEPS)
            self._load_s = clock() - start_s
            if self._shared is not None:
                self._shared.ensure_share(self, self._needed_bytes, self._holdings(self._needed_bytes))
            if memory is not None:
                self._needs = self._bytes_by_steps()
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> tuple[int, ...]:
        """The maximum lengths of the existing forms for one text."""
        return tuple(sorted(steps for steps, texts in self._forms if texts == 1))

    @property
    def arena_bytes(self) -> int:
        return self._arena.n_bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights in memory: packed for kernels, those of the source, and word vectors."""
        return sum(array.nbytes for array in list(self._weights.values())) + self.source.n_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes in memory, as predicted when the forms were made."""
        return 0 if self.loading_s else self._needed_bytes

    @property
    def needed_bytes(self) -> int:
        """Bytes that it holds to answer."""
        return self._needed_bytes

    @property
    def most_bytes(self) -> int | None:
        """The memory limit; with a shared budget, the current share."""
        return self._most if self._shared is None else self._needed_bytes

    @property
    def most_steps(self) -> int | None:
        """The most steps that there is memory for; None for all that the model reads."""
        most = self._most if self._shared is None else self._shared.most_share_of(self)
        if most is None:
            return None
        steps = max((n for n, needed in self._needs.items() if needed <= most), default=0)
        return None if steps >= self.source.spec.max_tokens else steps

    @property
    def memory(self) -> tuple[MemoryPart, ...]:
        """The memory predicted when the forms were made, and the memory in use now."""
        given = [*self.source.weights.values(), self.source.table]
        activations = self._activation_bytes(self._most_steps, self._arena.n_bytes)
        return (
            measure_part("weights as given, words", self.source.n_bytes, given),
            measure_part("weights", sum(a.nbytes for a in self._weights.values()), self._weights.values()),
            measure_part("activations", activations, [self.vectors, self.states, self._arena.memory]),
        )

    def calls(self, steps: int) -> tuple[CallEntry, ...]:
        """The kernel calls of a form of `steps` steps."""
        return describe_calls(self._graph(steps), self._target)

    def stage_of_ids(self, ids: np.ndarray) -> BoundStage:
        """The stage for these words, with their vectors as its input."""
        return self.stage_of_vectors(self.source.vectors(ids))

    def stage_of_vectors(self, vectors: Float[np.ndarray, "tokens inputs"]) -> BoundStage:
        """The stage for these input vectors."""
        n = len(vectors)
        steps = _power_of_two(max(LEAST_STEPS, n))
        self.reserve(steps)
        self.vectors[:n, 0] = vectors
        return self._stages[steps, 1]

    def stage_of_texts(self, texts: Sequence[np.ndarray]) -> BoundStage:
        """The stage for the words of some texts, the longest first; their answers are the first `numbers`.

        Raises BudgetError as `reserve_texts` does.
        """
        if len(texts) == 1:
            return self.stage_of_ids(texts[0])
        lengths = [len(ids) for ids in texts]
        size = self.reserve_texts(lengths)
        n, vectors = len(texts), self.source.vectors(np.concatenate(texts))
        self.vectors[: len(vectors), 0] = vectors
        starts, ends = self._ranges
        ends[:n], ends[n:] = lengths, 0
        starts[0], starts[1:n] = 0, np.cumsum(lengths)[:-1]
        return self._stages[size]

    def reserve_texts(self, lengths: Sequence[int]) -> tuple[int, int]:
        """Make the form for several texts of these lengths; returns its size.

        Raises BudgetError if memory is too little for so many at once; `most_rows` is smaller then.
        """
        size = _power_of_two(sum(max(n, LEAST_STEPS) for n in lengths)), _power_of_two(len(lengths))
        try:
            self.reserve(*size)
        except BudgetError:
            self.most_rows = size[0] // 2
            raise
        return size

    def reserve(self, steps: int, texts: int = 1) -> None:
        """Make the form of this size, and room for it; weights are packed once for all forms.

        An interrupt or a fork during this call leaves no stage, so that the next run starts with this step
        again.
        """
        if (steps, texts) in self._stages:
            return
        form = recurrent_form(self._graph(steps, texts), self._target)
        self._check_bound(form, steps)
        self._pack(form)
        code = load_kernels(image_kernels(form.image), self._library)
        self.pool.reserve(form.image.scratch_bytes)
        self._stages = {}
        # Drop the graph's weights, which have been packed.
        self._forms[steps, texts] = (StageForm(replace(form.image, packed={}, constants={})), code)
        self._stages = self._bind()

    def _bind(self) -> dict[_Size, BoundStage]:
        """Stages of all forms in memory for the largest."""
        spec, most, texts = self.source.spec, self._most_steps, max(n for _, n in self._forms)
        self.vectors = aligned_floats(most, 1, spec.inputs)
        self.states = aligned_floats(most, spec.width)
        answer, n = (POOLED, spec.features) if spec.labels is None else (LOGITS, len(spec.labels))
        self.numbers, self._ranges = np.zeros((texts, n), np.float32), np.zeros((2, texts), np.int32)
        self._arena.resize(max(f.image.arena_bytes for f, _ in self._forms.values()))
        at = {name: Buffer.of(array) for name, array in self._weights.items()}
        at |= {VECTORS: Buffer.of(self.vectors), STATES: Buffer.of(self.states)}
        at |= {STARTS: Buffer.of(self._ranges[0]), LENGTHS: Buffer.of(self._ranges[1])}
        at |= {answer: Buffer.of(self.numbers), ARENA: Buffer.of(self._arena.memory)}
        return {size: BoundStage(f, code, at) for size, (f, code) in self._forms.items()}

    def load(self) -> float:
        """Count a request; read weights and words again if they were freed for a shared budget.

        Returns the seconds that this took, including the time in which other models freed memory. Raises
        BudgetError if the others cannot free enough, ModelError if the files cannot be read.
        """
        if self._shared is None:
            return 0.0
        self._shared.count_request(self)
        if not self.loading_s:
            return 0.0
        start_s = self._clock()
        self._shared.ensure_share(self, self._needed_bytes)
        self._load()
        self._cold_s = self._clock() - start_s
        return self._cold_s

    def hold(self, n_bytes: int) -> None:
        """Free the model if it does not fit in `n_bytes`; load it if it fits and was freed."""
        if n_bytes < self._needed_bytes:
            self._empty()
            self.source, self.loading_s = self.source.without_weights(), max(self._load_s, self._cold_s)
        else:
            self._load()

    def close(self) -> None:
        """Free all memory."""
        self._empty()
        self.source = self.source.without_weights()
        if self._shared is not None:
            self._shared.release(self)

    def _load(self) -> None:
        if not self.loading_s:
            return
        start_s = self._clock()
        self.source = self.source.with_weights()
        self.reserve(LEAST_STEPS)
        self.loading_s, self._load_s = 0.0, self._clock() - start_s

    def _empty(self) -> None:
        self._stages, self._forms, self._weights, self._arena = {}, {}, {}, Arena()
        self.vectors = self.states = np.zeros((0, 0), np.float32)

    def _holdings(self, n_bytes: int) -> tuple[MemoryOption, ...]:
        """The two possible holdings: nothing (an answer then loads the model first), or the whole model."""
        return MemoryOption(0, self._load_s), MemoryOption(n_bytes, 0.0)

    @property
    def _most_steps(self) -> int:
        return max((steps for steps, _ in self._forms), default=0)

    def _graph(self, steps: int, texts: int = 1) -> Graph:
        return recurrent_graph(self.source.spec, self.source.weights, steps, texts)

    def _check_bound(self, form: StageForm, steps: int) -> None:
        """Raise BudgetError, before anything is allocated, where the form of `steps` does not fit.

        With a shared budget, other models free memory for it.
        """
        if self._most is None and self._shared is None:
            return
        arena = max(form.image.arena_bytes, self._arena.n_bytes)
        activations = self._activation_bytes(max(steps, self._most_steps), arena)
        needed = self._fixed_bytes(form) + activations
        if self._shared is not None:
            self._take(self._shared, needed)
        elif self._most is not None and needed > self._most:
            raise BudgetError(
                f"{self._most} bytes of memory are too little for texts of up to {steps} words in "
                f"{self.name}: its weights and words, which are in fp32, take {needed - activations}, "
                f"activations {activations}. Give at least {needed} bytes, or shorter texts."
            )

    def _bytes_by_steps(self) -> dict[int, int]:
        """The bytes that the model needs in memory for the form of each length, longer ones to the end."""
        found, arena, steps = dict[int, int](), 0, LEAST_STEPS
        while True:
            form = recurrent_form(self._graph(steps), self._target)
            arena = max(arena, form.image.arena_bytes)
            found[steps] = self._fixed_bytes(form) + self._activation_bytes(steps, arena)
            if steps >= self.source.spec.max_tokens:
                return found
            steps *= 2

    def _fixed_bytes(self, form: StageForm) -> int:
        """Bytes of the weights, those packed for `form` included, and of word vectors."""
        packed = {name: packed.n_bytes for name, packed in form.image.packed.items()}
        packed |= {name: constant.nbytes for name, constant in form.image.constants.items()}
        packed |= {name: array.nbytes for name, array in self._weights.items()}
        return sum(packed.values()) + self.source.n_bytes

    def _take(self, shared: MemoryBudget, n_bytes: int) -> None:
        """Take `n_bytes` of the budget. Raises BudgetError, and changes nothing, if there are fewer."""
        if self._needed_bytes:
            shared.ensure_share(self, n_bytes, self._holdings(n_bytes))
        else:
            shared.join(self, self._holdings(n_bytes), n_bytes)
        self._needed_bytes = n_bytes

    def _activation_bytes(self, steps: int, arena_bytes: int) -> int:
        """Bytes of a form's inputs, states and intermediate tensors."""
        return arena_bytes + 4 * steps * (self.source.spec.inputs + self.source.spec.width)

    def _pack(self, form: StageForm) -> None:
        """Pack the form's weights for its kernels. A weight is registered by name only after it is filled."""
        for name, packed in form.image.packed.items():
            if name not in self._weights:
                memory = aligned_bytes(packed.n_bytes)
                packed.fill(memory)
                self._weights[name] = memory
        for name, constant in form.image.constants.items():
            self._weights.setdefault(name, np.ascontiguousarray(constant))


def _power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << (n - 1).bit_length()
