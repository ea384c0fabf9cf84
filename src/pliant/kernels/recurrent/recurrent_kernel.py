"""LSTM, GRU and RNN over whole sequences, the loop over time inside; float32.

The inputs' products come from a convolution's kernel; here each step adds the state's products, 16 hidden
units with all their gates at a time, and applies the cell. All sequences of a step share one reading of the
weights.

A crew of threads shares some sequences of one direction. Its work is numbered: shares of the hidden units
within products within steps. A thread that takes a number computes that share when all shares of the previous
product are done. A number waits only for lower ones, which are already taken by other threads, so a single
thread also finishes.
"""

from functools import partial

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.isa import Isa
from pliant.kernels.emit.values import Value
from pliant.kernels.recurrent.recurrent_args import LANES, RecurrentArgs, RecurrentForm
from pliant.kernels.recurrent.recurrent_cells import CellArgs, call_cell, write_cell
from pliant.kernels.recurrent.recurrent_tile import write_products

START = "recurrent_start"
_STATES = 5  # h, the next h, c, z, r * h
_COUNTER_FLOATS = 16  # a cache line for each of the two


def scratch_bytes(form: RecurrentForm, unit_rows: int) -> int:
    """Scratch a thread needs: one block's sums for each sequence."""
    return 4 * unit_rows * form.gates * LANES


def crew_floats(hidden: int, unit_rows: int) -> int:
    """Memory a crew shares: counters and states, a whole number of cache lines."""
    return 2 * _COUNTER_FLOATS + _STATES * unit_rows * padded_hidden(hidden)


def padded_hidden(hidden: int) -> int:
    return -(-hidden // LANES) * LANES


def start_ir(isa: Isa) -> str:
    """`recurrent_start` with RecurrentArgs: counters at zero and initial states; a unit is a crew."""
    module = Module(isa)
    with module.kernel(START) as f:
        args, lo, hi, _ = f.params
        with f.each(lo, hi) as crew:
            _CrewWriter(f, args, crew).start()
    return module.text()


def recurrent_ir(isa: Isa, form: RecurrentForm) -> str:
    """The kernel `form.name` with RecurrentArgs; a unit is one member of a crew."""
    module = Module(isa)
    for gates in dict.fromkeys(form.passes):
        write_products(module, gates)
    for n_pass in range(len(form.passes)):
        write_cell(module, form, n_pass)
    _write_member(module, form)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        (members,) = f.fields(args, RecurrentArgs, "members")
        with f.each(lo, hi) as unit:
            f.call("member", "void", args, unit // members, scratch)
    return module.text()


def _write_member(module: Module, form: RecurrentForm) -> None:
    """Take numbers until all are taken."""
    params = (("args", "ptr"), ("crew", "i64"), ("scratch", "ptr"))
    with module.function("member", params, attributes="noinline", is_exported=False) as f:
        args, number, scratch = f.params
        (shares,) = f.fields(args, RecurrentArgs, "shares")
        crew = _CrewWriter(f, args, number)
        n_passes = len(form.passes)
        total = crew.steps * n_passes * shares
        with f.repeat() as loop:
            ticket = f.op(f"atomicrmw add {crew.next_ticket}, i64 1 acq_rel", "i64")
            is_work = ticket < total
            with f.when(is_work):
                phase, share = ticket // shares, ticket % shares
                _wait_for(f, crew.done, phase * shares)
                work = _ShareWriter(f, form, crew, phase // n_passes, share, scratch)
                f.match(phase % n_passes, {n: partial(work.write_pass, n) for n in range(n_passes)})
                f.op(f"atomicrmw add {crew.done}, i64 1 acq_rel", "i64")
            loop.repeat_if(is_work)
        f.ret()


def _wait_for(f: Function, counter: Value, number: Value) -> None:
    """Spin until a counter has reached a number."""

    def read() -> Value:
        return f.op(f"load atomic i64, {counter} acquire, align 8", "i64")

    with f.when(read() < number), f.repeat() as loop:
        f.pause()
        loop.repeat_if(read() < number)


class _CrewWriter:
    """Emits the code of one crew: its sequences, direction and shared memory."""

    def __init__(self, f: Function, args: Value, number: Value) -> None:
        self.f, self.args = f, args
        batch, unit_rows, row_blocks, first = self.integers(
            "batch", "unit_rows", "row_blocks", "first_direction"
        )
        self.hidden, self.blocks, self.most_steps, backward = self.integers(
            "hidden", "blocks", "steps", "backward"
        )
        (starts,) = f.fields(args, RecurrentArgs, "starts")
        self.is_concatenated = starts.compare("ne", 0)
        self.direction = number // row_blocks + first
        # Every row_blocks-th sequence: where they are sorted by length, crews have about equal work.
        self.row_blocks, self.first = row_blocks, number % row_blocks
        self.rows = (batch - self.first + (row_blocks - 1)) // row_blocks
        self.steps = self.end(f.const(0))
        self.is_backward = (backward + self.direction - first) & 1
        self.width = self.blocks * LANES
        (memory,) = f.fields(args, RecurrentArgs, "memory")
        self.next_ticket = f.at(memory, number * (unit_rows * self.width * _STATES + 2 * _COUNTER_FLOATS))
        self.done = f.at(self.next_ticket, _COUNTER_FLOATS)

    def state(self, n: "int | Value") -> Value:
        """The n-th of the states, [row][width]."""
        return self.f.at(self.next_ticket, self.rows * self.width * n + 2 * _COUNTER_FLOATS)

    def sequence(self, row: Value) -> Value:
        """The number of a row's sequence in the batch."""
        return row * self.row_blocks + self.first

    def length(self, row: Value) -> Value:
        """Steps of a row's sequence."""
        f = self.f
        (lengths,) = f.fields(self.args, RecurrentArgs, "lengths")

        def own() -> list[Value]:
            n = f.cast("sext", f.load(f.at(lengths, self.sequence(row), "i32"), "i32"), "i64")
            return [f.least(n, self.most_steps)]

        return f.choose(lengths.compare("ne", 0), own, lambda: [self.most_steps])[0]

    def end(self, row: Value) -> Value:
        """Steps that are computed of a row's sequence: its own if sequences are concatenated, else those of
        the longest.
        """
        return self.f.choose(self.is_concatenated, lambda: [self.length(row)], lambda: [self.most_steps])[0]

    def live_rows(self, t: Value) -> Value:
        """Rows that are computed in step t, the first ones."""
        f = self.f

        def count() -> list[Value]:
            with f.loop(0, self.rows, carry=[f.const(0)]) as loop:
                loop.carry([loop.carried[0] + f.cast("zext", t < self.length(loop.index), "i64")])
            return loop.carried[:1]

        return f.choose(self.is_concatenated, count, lambda: [self.rows])[0]

    def start(self) -> None:
        """Write initial states; zero if none are given, and in padding."""
        f = self.f
        for counter in (self.next_ticket, self.done):
            f.store(f.const(0), counter)
        state_b, state_d = self.integers("state_b", "state_d")
        for n, name in ((0, "initial_h"), (2, "initial_c")):
            (given,) = f.fields(self.args, RecurrentArgs, name)
            with f.each(0, self.rows) as row, f.each(0, self.width) as i:
                exists = (i < self.hidden) & given.compare("ne", 0)
                at = self.sequence(row) * state_b + self.direction * state_d + i
                zero = f.const(0.0, "float")
                value = f.choose(exists, partial(_load_at, f, given, at), partial(_as_list, zero))
                f.store(value[0], f.at(self.state(n), row * self.width + i))

    def integers(self, *names: str) -> list[Value]:
        return self.f.fields(self.args, RecurrentArgs, *names)


class _ShareWriter:
    """Emits the code of one share: a step of some blocks of hidden units."""

    def __init__(
        self, f: Function, form: RecurrentForm, crew: _CrewWriter, t: Value, share: Value, scratch: Value
    ) -> None:
        self.f, self.form, self.crew, self.t, self.sums = f, form, crew, t, scratch
        self.args, self.rows = crew.args, crew.live_rows(t)
        self.direction, self.width, self.blocks = crew.direction, crew.width, crew.blocks
        (shares,) = crew.integers("shares")
        self.first = crew.blocks * share // shares
        self.stop = crew.blocks * (share + 1) // shares
        self.h, self.following = crew.state(t & 1), crew.state((t & 1) ^ 1)

    def write_pass(self, n_pass: int) -> None:
        """The share of the step's first or second product, and the cell update after it."""
        f, crew, count = self.f, self.crew, self.form.passes[n_pass]
        weights = f.fields(self.args, RecurrentArgs, "weights", "late_weights")[n_pass]
        operand = crew.state(4) if n_pass else self.h
        first_gate = sum(self.form.passes[:n_pass])
        is_last = n_pass == len(self.form.passes) - 1
        with f.each(self.first, self.stop) as block:
            with f.each(0, self.rows) as row:
                self._begin(row, block, first_gate, count)
            b = f.at(weights, (self.direction * self.blocks + block) * (self.width * (count * LANES)))
            f.call(f"products{count}", "void", operand, self.width, b, self.sums, self.rows, self.width)
            with f.each(0, self.rows) as row:
                is_live = f.cast("zext", self.t < crew.length(row), "i64")
                with f.each(0, LANES, f.lanes) as lane:
                    call_cell(f, n_pass, self._cell_at(row, block, lane, count), is_live)
        if is_last:
            with f.each(0, self.rows) as row:
                self._write_y(row)
                with f.when((self.t + 1).compare("eq", crew.end(row))):
                    self._write_last(row)

    def _begin(self, row: Value, block: Value, first: int, count: int) -> None:
        """Sums start with the inputs' products; those of the reset gate's product with their bias."""
        f, gates = self.f, self.form.gates
        pre = f.at(self._input_row(row), block * (gates * LANES) + first * LANES)
        (bias,) = f.fields(self.args, RecurrentArgs, "hidden_bias")
        for g in range(count):
            source = f.at(pre, g * LANES)
            if self.form.cell == "gru" and g == 2:
                source = f.at(bias, (self.direction * self.blocks + block) * LANES)
            for lane in range(0, LANES, f.lanes):
                x = f.load(f.at(source, lane), f.vec)
                f.store(x, f.at(self.sums, row * (count * LANES) + (g * LANES + lane)))

    def _cell_at(self, row: Value, block: Value, lane: Value, count: int) -> CellArgs:
        """The addresses that the cell reads and writes for hidden units of a block from `lane` on."""
        f, form, place = self.f, self.form, row * self.width + block * LANES + lane
        (peepholes,) = f.fields(self.args, RecurrentArgs, "peepholes")
        of_unit = (self.direction * self.blocks + block) * (3 * LANES) + lane
        zeros = f.table([0.0] * (3 * LANES), "float")
        pre = f.at(self._input_row(row), block * (form.gates * LANES) + lane)
        return CellArgs(
            args=self.args,
            sums=f.at(self.sums, row * (count * LANES) + lane),
            old=f.at(self.h, place),
            new=f.at(self.following, place),
            c=f.at(self.crew.state(2), place),
            z=f.at(self.crew.state(3), place),
            reset=f.at(self.crew.state(4), place),
            pre=pre,
            peepholes=f.select(peepholes.compare("eq", 0), zeros, f.at(peepholes, of_unit)),
        )

    def _write_y(self, row: Value) -> None:
        """The share's part of the step's output: zeros after the end of a sequence."""
        f = self.f
        (y,) = f.fields(self.args, RecurrentArgs, "y")
        with f.when(y.compare("ne", 0)):
            to = f.at(y, self._row_offset(row, *self.crew.integers("y_t", "y_b", "y_d")))

            def live() -> list[Value]:
                self._copy(f.at(self.following, row * self.width), to)
                return []

            def ended() -> list[Value]:
                with f.each(self.first * LANES, self._end()) as i:
                    f.store(f.const(0.0, "float"), f.at(to, i))
                return []

            f.choose(self.t < self.crew.length(row), live, ended)

    def _write_last(self, row: Value) -> None:
        """Write the share's part of a row's final states to the outputs."""
        f = self.f
        state_b, state_d = self.crew.integers("state_b", "state_d")
        for state, name in ((self.following, "y_h"), (self.crew.state(2), "y_c")):
            (to,) = f.fields(self.args, RecurrentArgs, name)
            with f.when(to.compare("ne", 0)):
                at = self.crew.sequence(row) * state_b + self.direction * state_d
                self._copy(f.at(state, row * self.width), f.at(to, at))

    def _copy(self, source: Value, to: Value) -> None:
        """Copy the share's hidden units of one row."""
        f, begin, end = self.f, self.first * LANES, self._end()
        whole = end - (end - begin) % f.lanes
        with f.each(begin, whole, f.lanes) as i:
            f.store(f.load(f.at(source, i), f.vec), f.at(to, i))
        with f.each(whole, end) as i:
            f.store(f.load(f.at(source, i)), f.at(to, i))

    def _end(self) -> Value:
        """One past the share's last hidden unit."""
        return self.f.least(self.stop * LANES, self.crew.hidden)

    def _time(self, row: Value) -> Value:
        """The position of this step in the sequence; the step number after the sequence has ended."""
        length = self.crew.length(row)
        turns = (self.t < length) & self.crew.is_backward.compare("ne", 0)
        return self.f.select(turns, length - 1 - self.t, self.t)

    def _input_row(self, row: Value) -> Value:
        (pre,) = self.f.fields(self.args, RecurrentArgs, "pre")
        return self.f.at(pre, self._row_offset(row, *self.crew.integers("pre_t", "pre_b", "pre_d")))

    def _row_offset(self, row: Value, step: Value, sequence: Value, direction: Value) -> Value:
        """The place of this step of a row's sequence, from the strides of an array."""
        f, number = self.f, self.crew.sequence(row)
        (starts,) = f.fields(self.args, RecurrentArgs, "starts")

        def concatenated() -> list[Value]:
            return [f.cast("sext", f.load(f.at(starts, number, "i32"), "i32"), "i64") * step]

        begin = f.choose(self.crew.is_concatenated, concatenated, lambda: [number * sequence])[0]
        return begin + self._time(row) * step + self.direction * direction


def _load_at(f: Function, pointer: Value, index: Value) -> list[Value]:
    return [f.load(f.at(pointer, index))]


def _as_list(value: Value) -> list[Value]:
    return [value]
