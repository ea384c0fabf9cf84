"""A recurrent model, ready to answer: words in, label or vector out, one native call between.

Kernels are the same for all lengths; a form is lowered for each power of two, when it is first needed, and a
run cuts it to the steps there are.
"""

from dataclasses import dataclass, replace
from typing import final

import numpy as np

from pliant.arrays import Float32, Integer
from pliant.compiler.executable.assemble_image import ARENA
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import kernels
from pliant.compiler.executable.kernel_addresses import addresses
from pliant.compiler.executable.recurrent_stages import recurrent_form
from pliant.compiler.executable.stage import Form, Stage
from pliant.errors import InputError
from pliant.kernels.runtime.aligned_memory import aligned_bytes, aligned_floats
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import Pool
from pliant.kernels.runtime.turns import Turns
from pliant.models.recurrent.recurrent_graph import LOGITS, POOLED, STATES, VECTORS, recurrent_graph
from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.models.recurrent.recurrent_spec import MAX_TOKENS, RecurrentSpec
from pliant.run.arena import Arena

_LEAST_STEPS = 64
"""Of the smallest form; it is made when the model is opened."""


@dataclass(frozen=True, slots=True)
class RecurrentAnswer:
    """A classifier's `logits` [labels] with the best `label` and its probability `score`.

    A model without labels gives its pooled vector [features] as `logits`, and neither of the other two.
    """

    logits: Float32[np.ndarray, " outputs"]
    label: str | None
    score: float | None
    n_tokens: int


@final
class RecurrentModel:
    """A model on this device; threads may share it, and take turns. The pool is left open."""

    def __init__(self, source: RecurrentSource, library: Library, pool: Pool) -> None:
        self.source = source
        self._library, self._pool = library, pool
        self._target = Target(library.isa, pool.n_threads)
        self._turns, self._closed = Turns(), False
        self._arena = Arena()
        self._weights: dict[str, np.ndarray] = {}
        self._forms: dict[int, tuple[Form, dict[str, int]]] = {}
        self._stages: dict[int, Stage] = {}
        self._answer = np.zeros(0, np.float32)
        with self._turns.lock:
            self._reserve(_LEAST_STEPS)

    def __enter__(self) -> "RecurrentModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def spec(self) -> RecurrentSpec:
        return self.source.spec

    @property
    def weight_bytes(self) -> int:
        """Of all weights in memory: as kernels want them, as the source has them, and the words' vectors."""
        held = [*self._weights.values(), *self.source.weights.values(), self.source.table]
        return sum(array.nbytes for array in held)

    def __call__(self, text: str) -> RecurrentAnswer:
        """The answer to a text. Raises InputError where it has no words, or too many."""
        return self.answer(self.source.read(text))

    def answer(self, ids: Integer[np.ndarray, " tokens"]) -> RecurrentAnswer:
        """The answer to words by number. Raises InputError for none, too many, or one that does not exist."""
        vectors = self.source.look_up(ids)
        with self._turns.lock:
            self._run(vectors)
            numbers = self._answer.copy()
        if self.spec.labels is None:
            return RecurrentAnswer(numbers, None, None, len(ids))
        best = int(numbers.argmax())
        score = 1 / float(np.exp(numbers - numbers[best]).sum())
        return RecurrentAnswer(numbers, self.spec.labels[best], score, len(ids))

    def states(self, vectors: Float32[np.ndarray, "tokens inputs"]) -> Float32[np.ndarray, "tokens width"]:
        """The last layer's state after each step, both directions side by side: what an encoder is for.

        Raises InputError for vectors that the model cannot read.
        """
        n, inputs = len(vectors), self.spec.inputs
        if not 1 <= n <= MAX_TOKENS or vectors.shape[1:] != (inputs,):
            raise InputError(
                f"vectors of {list(vectors.shape)} cannot be read; give 1 to {MAX_TOKENS} rows of {inputs}."
            )
        with self._turns.lock:
            self._run(vectors)
            return self._states[:n].copy()

    def reserve(self, n_tokens: int) -> None:
        """Make ready for inputs of up to `n_tokens` words: none of them takes longer for being the first."""
        with self._turns.lock:
            self._check_open()
            steps = _LEAST_STEPS
            while steps < min(2 * n_tokens, 2 * MAX_TOKENS):
                if steps not in self._stages:
                    self._reserve(steps)
                steps *= 2

    def close(self) -> None:
        """Let go of all memory; answering afterwards is an error."""
        with self._turns.lock:
            self._closed = True
            self._stages, self._forms, self._weights, self._arena = {}, {}, {}, Arena()

    def _run(self, vectors: Float32[np.ndarray, "tokens inputs"]) -> None:
        self._check_open()
        steps = max(_LEAST_STEPS, 1 << (len(vectors) - 1).bit_length())
        if steps not in self._stages:
            self._reserve(steps)
        self._vectors[: len(vectors), 0] = vectors
        self._stages[steps].walk((len(vectors),), self._pool)

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this model is closed; open it again.")

    def _reserve(self, steps: int) -> None:
        """Make the form of `steps`, and room for it; weights are packed once for all forms.

        An interrupt or a fork on the way leaves no stage, so that the next run begins here again.
        """
        spec = self.spec
        form = recurrent_form(recurrent_graph(spec, self.source.weights, steps), self._target)
        self._pack(form)
        code = addresses(kernels(form.image), self._library)
        self._pool.reserve(form.image.scratch_bytes)
        self._stages = {}
        # Without the graph's weights, which are packed by now.
        self._forms[steps] = (Form(replace(form.image, packed={}, constants={})), code)
        most = max(self._forms)
        self._vectors = aligned_floats(most, 1, spec.inputs)
        self._states = aligned_floats(most, spec.width)
        self._answer = np.zeros(spec.features if spec.labels is None else len(spec.labels), np.float32)
        self._arena.resize(max(f.image.arena_bytes for f, _ in self._forms.values()))
        answer = POOLED if spec.labels is None else LOGITS
        at = {name: array.ctypes.data for name, array in self._weights.items()}
        at |= {VECTORS: self._vectors.ctypes.data, STATES: self._states.ctypes.data}
        at |= {answer: self._answer.ctypes.data, ARENA: self._arena.address}
        self._stages = {n: Stage(f, code, at) for n, (f, code) in self._forms.items()}

    def _pack(self, form: Form) -> None:
        """Keep the form's weights as its kernels read them, each filled before it is known by name."""
        for name, packed in form.image.packed.items():
            if name not in self._weights:
                memory = aligned_bytes(packed.n_bytes)
                packed.fill(memory)
                self._weights[name] = memory
        for name, constant in form.image.constants.items():
            self._weights.setdefault(name, np.ascontiguousarray(constant))
