"""A session on a recurrent model: words in, label or vector out, one native call between.

Kernels are the same for all lengths; a form is lowered for each power of two, when it is first needed, and a
run cuts it to the steps there are.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, repeat
from operator import mul
from typing import TYPE_CHECKING, TypeVar, final

import numpy as np

from pliant.arrays import Float, Float32
from pliant.compiler.executable.call import Target
from pliant.compiler.executable.encode_image import Row, kernels
from pliant.compiler.executable.kernel_addresses import addresses
from pliant.compiler.executable.recurrent_stages import described_calls, recurrent_form
from pliant.compiler.executable.stage import Form, Stage
from pliant.errors import BudgetError, InputError
from pliant.ir.dilation import Dilation
from pliant.ir.endpoint import Request
from pliant.ir.executable import ARENA
from pliant.ir.program import Compute, Linear, Program, Segment, Step, bind
from pliant.ir.reply import Reply
from pliant.kernels.runtime.aligned_memory import aligned_bytes, aligned_floats, trim_heap
from pliant.kernels.runtime.buffer import Buffer
from pliant.kernels.runtime.jit import Library
from pliant.kernels.runtime.thread_pool import Pool
from pliant.kernels.runtime.turns import Turns
from pliant.models.recurrent.recurrent_graph import LOGITS, POOLED, STATES, VECTORS, recurrent_graph
from pliant.models.recurrent.recurrent_source import RecurrentSource
from pliant.models.recurrent.recurrent_spec import MAX_TOKENS, RecurrentSpec
from pliant.models.tokenizer import Encoded
from pliant.quantities import check_whole
from pliant.run.arena import Arena
from pliant.run.execute_alone import execute_alone, spans_alone
from pliant.run.graph.operator_calls import operator_calls
from pliant.run.graph.recurrent_plan import RecurrentPlan
from pliant.run.memory_use import MemoryUse, part, rss_bytes, scratch_part
from pliant.run.session.feeds import GivenFeeds
from pliant.run.session.ports import shown
from pliant.run.session.text_session import TextInput, TextSession

if TYPE_CHECKING:
    from pliant.run.session.call_profile import Profile, TimedRun

T = TypeVar("T")
_WORDS = "words"
_PROGRAM = Program((Segment((Step("cpu", Compute("recurrent", rows=Linear(_WORDS))),)),), extents=(_WORDS,))
_LEAST_STEPS = 64
"""Of the smallest form; it is made when the model is opened."""


@final
class RecurrentSession(TextSession[None]):
    """A recurrent model on this device; threads may share it, and take turns. The pool is left open.

    Its time grows in line with the words. The texts of a list run one after another.
    """

    platform = "pliant_recurrent"
    degree = 1

    def __init__(
        self,
        source: RecurrentSource,
        library: Library,
        pool: Pool,
        *,
        name: str | None = None,
        dilation: Dilation = Dilation(),  # noqa: B008 - frozen
        memory_bytes: int | None = None,
    ) -> None:
        """Raises BudgetError where the weights, with activations of the shortest form, take more memory."""
        spec = source.spec
        super().__init__(
            name or source.name,
            source.identity,
            labels=spec.labels,
            features=spec.features,
            max_length=spec.max_tokens,
            vocab=spec.vocab,
            dilation=dilation,
        )
        self.source, self._memory_bytes = source, memory_bytes
        self._library, self._pool = library, pool
        self._target = Target(library.isa, pool.n_threads)
        self._turns, self._closed = Turns(), False
        self._arena = Arena()
        self._weights: dict[str, np.ndarray] = {}
        self._forms: dict[int, tuple[Form, dict[str, int]]] = {}
        self._stages: dict[int, Stage] = {}
        self._numbers = np.zeros(0, np.float32)
        with self._turns.lock:
            self._reserve(_LEAST_STEPS)
        trim_heap()  # words are read as float32, which takes several times what is kept

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self._pool.n_threads} threads"
        return shown(f"RecurrentSession of {self.name}", self.inputs, self.outputs, state)

    @property
    def spec(self) -> RecurrentSpec:
        return self.source.spec

    @property
    def weight_bytes(self) -> int:
        """Of all weights in memory: as kernels want them, as the source has them, and the words' vectors."""
        held = [*self._weights.values(), *self.source.weights.values(), self.source.table]
        return sum(array.nbytes for array in held)

    @property
    def memory(self) -> MemoryUse:
        """Predicted when its forms were made, and measured now."""
        with self._turns.lock:
            steps = max(self._forms, default=0)
            given = [*self.source.weights.values(), self.source.table]
            return MemoryUse(
                self._memory_bytes,
                (
                    part("weights as given, words", sum(a.nbytes for a in given), given),
                    part("weights", sum(a.nbytes for a in self._weights.values()), self._weights.values()),
                    part(
                        "activations",
                        self._activation_bytes(steps, self._arena.n_bytes),
                        [self._vectors, self._states, self._arena.memory],
                    ),
                ),
                (scratch_part(self._pool),),
                rss_bytes(),
            )

    @property
    def plan(self) -> RecurrentPlan:
        """What runs for as many words as the largest form has room for; it prints as a page."""
        with self._turns.lock:
            self._check_open()
            return self._planned(max(self._forms, default=_LEAST_STEPS))

    def explain(self, length: int) -> RecurrentPlan:
        """What runs for so many words; forms for all lengths up to it are made now, so that none takes longer
        for being the first. Raises InputError for a length that the model does not read."""
        check_whole(length, "length")
        if not 1 <= length <= self.max_length:
            raise InputError(f"a text of {length} words is not read; give 1 to {self.max_length}.")
        with self._turns.lock:
            self._check_open()
            for steps in accumulate(repeat(2), mul, initial=_LEAST_STEPS):
                if steps not in self._stages:
                    self._reserve(steps)
                if steps >= length:
                    break
            return self._planned(length)

    def profile(self, feeds: GivenFeeds | str, runs: int = 20) -> "Profile":
        """Where the time of an answer to a text, or to feeds, goes, step by step, over `runs` runs after one
        that is not counted."""
        if runs < 1:
            raise InputError(f"a profile of {runs} runs measures nothing; give at least 1.")
        given = {"text": feeds} if isinstance(feeds, str) else feeds
        ids = self._encoded(given).ids
        with self._turns.lock:
            self._check_open()
            vectors = self.source.vectors(ids)
            self._run_steps(vectors)
            timed = [self._timed(vectors) for _ in range(runs)]
        return self._profiled(len(ids), timed)

    def traced(self, request: Request) -> "Reply[Profile]":
        asked = self._asked_by(request)
        ids = asked.encoded.ids
        asked_s = self._clock()
        with self._turns.lock:
            start_s = self._clock()
            self._check_open()
            timed = self._timed(self.source.vectors(ids))
            fields = self.outputs_of(self._numbers.copy())
            self._slow_down(start_s)
        seconds = time.perf_counter() - asked.start_s
        profile = self._profiled(len(ids), [timed])
        return Reply(
            endpoint=self.name,
            seconds=seconds,
            details=profile,
            length=len(ids),
            waited_s=start_s - asked_s,
            whole_s=seconds,
            **fields,
        )

    def encode(self, text: str, pair: str | None = None) -> Encoded:
        """The numbers of a text's words. Raises InputError for none, too many, or a pair."""
        if pair is not None:
            raise InputError(f"{self.name} is a recurrent model, which reads one text and no pair.")
        return self.source.encode(text)

    def truncate(self, text: str, pair: str | None = None) -> tuple[str, str | None]:
        """The beginning of a text that the model reads."""
        return self.source.truncate(text), pair

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
            start_s = self._clock()
            self._check_open()
            self._run_steps(vectors)
            states = self._states[:n].copy()
            self._slow_down(start_s)
            return states

    def close(self) -> None:
        """Let go of all memory; answering afterwards is an error."""
        with self._turns.lock:
            self._closed = True
            self._stages, self._forms, self._weights, self._arena = {}, {}, {}, Arena()
            self._vectors = self._states = np.zeros((0, 0), np.float32)
            self.source = replace(self.source, weights={}, table=self._vectors)

    def _answers(self, asked: Sequence[TextInput], target_s: float | None) -> list[Reply[None]]:
        return [self._answer(one, target_s) for one in asked]

    def _answer(self, asked: TextInput, target_s: float | None) -> Reply[None]:
        ids = asked.encoded.ids
        fields, waited_s = self._read_in_turn(ids, self.outputs_of)
        return Reply(
            endpoint=self.name,
            seconds=time.perf_counter() - asked.start_s,
            details=None,
            length=len(ids),
            waited_s=waited_s,
            target_s=target_s,
            **fields,
        )

    def _asked_by(self, request: Request) -> TextInput:
        asked = super()._asked_by(request)
        if request.text is None:  # nobody says who made it
            self.source.check(asked.encoded.ids)
        return asked

    def _outputs(self, feeds: GivenFeeds) -> dict[str, np.ndarray]:
        return self._read_in_turn(self._encoded(feeds).ids, self._named)[0]

    def _read_in_turn(self, ids: np.ndarray, read: Callable[[np.ndarray], T]) -> tuple[T, float]:
        """What `read` makes of the numbers for words, and the seconds that other threads had the session."""
        asked_s = self._clock()
        with self._turns.lock:
            start_s = self._clock()
            self._check_open()
            self._run_steps(self.source.vectors(ids))
            found = read(self._numbers.copy())
            self._slow_down(start_s)  # a slower device is slower at words and labels too
            return found, start_s - asked_s

    def _run_steps(self, vectors: Float[np.ndarray, "tokens inputs"]) -> None:
        stage, lengths = self._fed(vectors), (len(vectors),)
        execute_alone(_PROGRAM, lambda *_: stage.walk(lengths, self._pool))

    def _timed(self, vectors: Float[np.ndarray, "tokens inputs"]) -> "TimedRun":
        from pliant.run.session.call_profile import TimedRun  # draws tables, which no run needs

        stage, lengths = self._fed(vectors), (len(vectors),)
        ends_s: list[np.ndarray] = []
        readings_s = execute_alone(_PROGRAM, lambda *_: ends_s.append(stage.walk_timed(lengths, self._pool)))
        return TimedRun(spans_alone(_PROGRAM, readings_s), ends_s)

    def _profiled(self, n: int, runs: "Sequence[TimedRun]") -> "Profile":
        from pliant.run.session.call_profile import profile_of

        return profile_of(bind(_PROGRAM, {_WORDS: n}), [self._calls(n)], runs, self._pool.n_threads)

    def _fed(self, vectors: Float[np.ndarray, "tokens inputs"]) -> Stage:
        """The stage of so many words, which now reads these."""
        n = len(vectors)
        steps = max(_LEAST_STEPS, 1 << (n - 1).bit_length())
        if steps not in self._stages:
            self._reserve(steps)
        self._vectors[:n, 0] = vectors
        return self._stages[steps]

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("this session is closed; open the model again.")

    def _planned(self, length: int) -> RecurrentPlan:
        times = self._times
        return RecurrentPlan(
            self.name,
            self.spec,
            self._pool.n_threads,
            length,
            bind(_PROGRAM, {_WORDS: length}),
            operator_calls(self._calls(length)),
            tuple(sorted(self._forms)),
            self.weight_bytes,
            self._arena.n_bytes,
            None if times is None or times.curve is None else times.curve.at(length),
        )

    def _calls(self, steps: int) -> tuple[Row, ...]:
        return described_calls(recurrent_graph(self.spec, self.source.weights, steps), self._target)

    def _reserve(self, steps: int) -> None:
        """Make the form of `steps`, and room for it; weights are packed once for all forms.

        An interrupt or a fork on the way leaves no stage, so that the next run begins here again.
        """
        spec = self.spec
        form = recurrent_form(recurrent_graph(spec, self.source.weights, steps), self._target)
        self._check_bound(form, steps)
        self._pack(form)
        code = addresses(kernels(form.image), self._library)
        self._pool.reserve(form.image.scratch_bytes)
        self._stages = {}
        # Without the graph's weights, which are packed by now.
        self._forms[steps] = (Form(replace(form.image, packed={}, constants={})), code)
        most = max(self._forms)
        self._vectors = aligned_floats(most, 1, spec.inputs)
        self._states = aligned_floats(most, spec.width)
        self._numbers = np.zeros(spec.features if spec.labels is None else len(spec.labels), np.float32)
        self._arena.resize(max(f.image.arena_bytes for f, _ in self._forms.values()))
        answer = POOLED if spec.labels is None else LOGITS
        at = {name: Buffer.of(array) for name, array in self._weights.items()}
        at |= {VECTORS: Buffer.of(self._vectors), STATES: Buffer.of(self._states)}
        at |= {answer: Buffer.of(self._numbers), ARENA: Buffer.of(self._arena.memory)}
        self._stages = {n: Stage(f, code, at) for n, (f, code) in self._forms.items()}

    def _check_bound(self, form: Form, steps: int) -> None:
        """Raise BudgetError, before anything is allocated, where the form of `steps` does not fit."""
        if self._memory_bytes is None:
            return
        packed = {name: packed.n_bytes for name, packed in form.image.packed.items()}
        packed |= {name: constant.nbytes for name, constant in form.image.constants.items()}
        packed |= {name: array.nbytes for name, array in self._weights.items()}
        given = sum(array.nbytes for array in (*self.source.weights.values(), self.source.table))
        arena = max(form.image.arena_bytes, self._arena.n_bytes)
        activations = self._activation_bytes(max(steps, *self._forms, 0), arena)
        needed = sum(packed.values()) + given + activations
        if needed > self._memory_bytes:
            raise BudgetError(
                f"{self._memory_bytes} bytes of memory are too little for texts of up to {steps} words in "
                f"{self.name}: its weights and words, which are in fp32, take {needed - activations}, "
                f"activations {activations}. Give at least {needed} bytes, or shorter texts."
            )

    def _activation_bytes(self, steps: int, arena_bytes: int) -> int:
        """Of a form: its inputs and states, and what its kernels keep between."""
        return arena_bytes + 4 * steps * (self.spec.inputs + self.spec.width)

    def _pack(self, form: Form) -> None:
        """Keep the form's weights as its kernels read them, each filled before it is known by name."""
        for name, packed in form.image.packed.items():
            if name not in self._weights:
                memory = aligned_bytes(packed.n_bytes)
                packed.fill(memory)
                self._weights[name] = memory
        for name, constant in form.image.constants.items():
            self._weights.setdefault(name, np.ascontiguousarray(constant))
