"""LSTM, GRU and RNN over whole sequences, the loop over time inside; float32. Knows no graph.

A unit is some sequences of one direction. The inputs' products come from a convolution's kernel; here
each step adds the state's products, 16 hidden units with all their gates at a time, and applies the cell.
"""

from collections.abc import Sequence

from pliant.kernels.emit import Function, Module
from pliant.kernels.isa import Isa
from pliant.kernels.recurrent_args import LANES, RecurrentArgs, RecurrentForm
from pliant.kernels.recurrent_cells import ACTIVATIONS, Applied, gru, lstm
from pliant.kernels.recurrent_tile import write_products
from pliant.kernels.values import Value

_STATES = 5  # h, the next h, c, z, r * h


def scratch_bytes(form: RecurrentForm, hidden: int, unit_rows: int) -> int:
    """Scratch a thread needs: states and a block's sums of each sequence."""
    return 4 * unit_rows * (_STATES * padded_hidden(hidden) + form.gates * LANES) + 64


def padded_hidden(hidden: int) -> int:
    return -(-hidden // LANES) * LANES


def recurrent_ir(isa: Isa, form: RecurrentForm) -> str:
    """The kernel `form.name` with RecurrentArgs."""
    module = Module(isa)
    for gates in dict.fromkeys(form.passes):
        write_products(module, gates)
    _write_sequences(module, form)
    with module.kernel(form.name) as f:
        args, lo, hi, scratch = f.params
        with f.each(lo, hi) as unit:
            f.call("sequences", "void", args, unit, scratch)
    return module.text()


def _write_sequences(module: Module, form: RecurrentForm) -> None:
    """All steps of a unit."""
    params = (("args", "ptr"), ("unit", "i64"), ("scratch", "ptr"))
    with module.function("sequences", params, attributes="noinline", is_exported=False) as f:
        args, unit, scratch = f.params
        steps, batch, unit_rows, row_blocks, first = f.fields(
            args, RecurrentArgs, "steps", "batch", "unit_rows", "row_blocks", "first_direction"
        )
        direction = unit // row_blocks + first
        first_row = unit % row_blocks * unit_rows
        rows = f.least(unit_rows, batch - first_row)
        unit_ = _Unit(f, form, direction, first_row, rows, scratch)
        unit_.start()
        with f.loop(0, steps, carry=[unit_.state(0), unit_.state(1)]) as t:
            h, following = t.carried
            unit_.step(t.index, h, following)
            t.carry([following, h])
        unit_.end(t.carried[0])
        f.ret()


class _Unit:
    """The code of one unit: its sequences' states in scratch, its direction's weights and places."""

    def __init__(
        self,
        f: Function,
        form: RecurrentForm,
        direction: Value,
        first_row: Value,
        rows: Value,
        scratch: Value,
    ) -> None:
        self.f, self.form, self.rows, self.first_row = f, form, rows, first_row
        self.args = f.params[0]
        self.direction = direction
        self.hidden, self.blocks, self.steps, backward = self._integers(
            "hidden", "blocks", "steps", "backward"
        )
        (first,) = self._integers("first_direction")
        self.is_backward = (backward + direction - first) & 1
        self.width = self.blocks * LANES
        self.scratch = scratch
        self.sums = self.state(_STATES)

    def state(self, n: int) -> Value:
        """The n-th of the states, [row][width]."""
        return self.f.at(self.scratch, self.rows * self.width * n)

    def start(self) -> None:
        """Initial states, zero where none are given and in padding."""
        f = self.f
        state_b, state_d = self._integers("state_b", "state_d")
        for n, name in ((0, "initial_h"), (2, "initial_c")):
            (given,) = f.fields(self.args, RecurrentArgs, name)
            with f.each(0, self.rows) as row, f.each(0, self.width) as i:
                exists = (i < self.hidden) & given.compare("ne", 0)
                at = (row + self.first_row) * state_b + self.direction * state_d + i
                zero = f.const(0.0, "float")
                value = f.choose(
                    exists, lambda at=at, given=given: [f.load(f.at(given, at))], lambda z=zero: [z]
                )
                f.store(value[0], f.at(self.state(n), row * self.width + i))

    def end(self, h: Value) -> None:
        """The last states, to where they are wanted."""
        f = self.f
        state_b, state_d = self._integers("state_b", "state_d")
        for state, name in ((h, "y_h"), (self.state(2), "y_c")):
            (to,) = f.fields(self.args, RecurrentArgs, name)
            with f.when(to.compare("ne", 0)), f.each(0, self.rows) as row:
                at = (row + self.first_row) * state_b + self.direction * state_d
                self._copy(f.at(state, row * self.width), f.at(to, at))

    def step(self, t: Value, h: Value, following: Value) -> None:
        """One step of every sequence: from the states `h` to the states `following`."""
        f, gates = self.f, self.form.gates
        weights, late = f.fields(self.args, RecurrentArgs, "weights", "late_weights")
        first = 0
        for n, count in enumerate(self.form.passes):
            operand = self.state(4) if n else h
            matrix = (late if n else weights, count)
            with f.each(0, self.blocks) as block:
                with f.each(0, self.rows) as row:
                    self._begin(t, row, block, first, count)
                size = self.width * (matrix[1] * LANES)
                b = f.at(matrix[0], (self.direction * self.blocks + block) * size)
                f.call(f"products{count}", "void", operand, self.width, b, self.sums, self.rows, self.width)
                with f.each(0, self.rows) as row, f.each(0, LANES, f.lanes) as lane:
                    place = row * self.width + block * LANES + lane
                    sums = [
                        f.load(f.at(self.sums, row * (count * LANES) + lane + g * LANES), f.vec)
                        for g in range(count)
                    ]
                    self._cell(n, t, row, block, lane, place, sums, h, following)
            first += count
        assert first == gates
        with f.each(0, self.rows) as row:
            self._write_y(t, row, following)

    def _begin(self, t: Value, row: Value, block: Value, first: int, count: int) -> None:
        """Sums start as the inputs' products; those under the reset gate as their own bias."""
        f, gates = self.f, self.form.gates
        pre = f.at(self._input_row(t, row), block * (gates * LANES) + first * LANES)
        (bias,) = f.fields(self.args, RecurrentArgs, "hidden_bias")
        for g in range(count):
            source = f.at(pre, g * LANES)
            if self.form.cell == "gru" and g == 2:
                source = f.at(bias, (self.direction * self.blocks + block) * LANES)
            for lane in range(0, LANES, f.lanes):
                x = f.load(f.at(source, lane), f.vec)
                f.store(x, f.at(self.sums, row * (count * LANES) + (g * LANES + lane)))

    def _cell(
        self,
        n_pass: int,
        t: Value,
        row: Value,
        block: Value,
        lane: Value,
        place: Value,
        sums: Sequence[Value],
        h: Value,
        following: Value,
    ) -> None:
        f, gates = self.f, self.form.gates
        is_live = t < self._length(row)
        old = f.load(f.at(h, place), f.vec)
        acts = [self._activation(i) for i in range(len(self.form.activations))]
        match self.form.cell:
            case "rnn":
                new = acts[0](sums[0])
            case "lstm":
                c_at = f.at(self.state(2), place)
                c = f.load(c_at, f.vec)
                (couples,) = self._integers("couples_gates")
                new, c_new = lstm(f, sums, c, self._peepholes(block, lane), couples, acts)
                f.store(f.select(is_live, c_new, c), c_at)
            case "gru":
                pre = f.at(self._input_row(t, row), block * (gates * LANES) + 2 * LANES + lane)
                candidate = acts[1](f.fma(acts[0](sums[1]), sums[2], f.load(pre, f.vec)))
                new = gru(f, acts[0](sums[0]), candidate, old)
            case "gru_reset_before":
                if n_pass == 0:
                    f.store(acts[0](sums[0]), f.at(self.state(3), place))
                    f.store(acts[0](sums[1]) * old, f.at(self.state(4), place))
                    return
                new = gru(f, f.load(f.at(self.state(3), place), f.vec), acts[1](sums[0]), old)
        f.store(f.select(is_live, new, old), f.at(following, place))

    def _write_y(self, t: Value, row: Value, following: Value) -> None:
        """The step's output to its place in y: zeros where a sequence has ended."""
        f = self.f
        (y,) = f.fields(self.args, RecurrentArgs, "y")
        y_t, y_b, y_d = self._integers("y_t", "y_b", "y_d")
        with f.when(y.compare("ne", 0)):
            at = self._time(t, row) * y_t + (row + self.first_row) * y_b + self.direction * y_d
            to = f.at(y, at)

            def live() -> list[Value]:
                self._copy(f.at(following, row * self.width), to)
                return []

            def ended() -> list[Value]:
                with f.each(0, self.hidden) as i:
                    f.store(f.const(0.0, "float"), f.at(to, i))
                return []

            f.choose(t < self._length(row), live, ended)

    def _copy(self, source: Value, to: Value) -> None:
        """One row of hidden units."""
        f = self.f
        whole = self.hidden - self.hidden % f.lanes
        with f.each(0, whole, f.lanes) as i:
            f.store(f.load(f.at(source, i), f.vec), f.at(to, i))
        with f.each(whole, self.hidden) as i:
            f.store(f.load(f.at(source, i)), f.at(to, i))

    def _length(self, row: Value) -> Value:
        """Steps of a row's sequence."""
        f = self.f
        (lengths,) = f.fields(self.args, RecurrentArgs, "lengths")

        def own() -> list[Value]:
            n = f.cast("sext", f.load(f.at(lengths, row + self.first_row, "i32"), "i32"), "i64")
            return [f.least(n, self.steps)]

        return f.choose(lengths.compare("ne", 0), own, lambda: [self.steps])[0]

    def _time(self, t: Value, row: Value) -> Value:
        """Where in the sequence step `t` is; the step itself once the sequence has ended."""
        length = self._length(row)
        turns = (t < length) & self.is_backward.compare("ne", 0)
        return self.f.select(turns, length - 1 - t, t)

    def _input_row(self, t: Value, row: Value) -> Value:
        pre_t, pre_b, pre_d = self._integers("pre_t", "pre_b", "pre_d")
        (pre,) = self.f.fields(self.args, RecurrentArgs, "pre")
        at = self._time(t, row) * pre_t + (row + self.first_row) * pre_b + self.direction * pre_d
        return self.f.at(pre, at)

    def _peepholes(self, block: Value, lane: Value) -> list[Value]:
        f = self.f
        (peepholes,) = f.fields(self.args, RecurrentArgs, "peepholes")
        at = (self.direction * self.blocks + block) * (3 * LANES) + lane

        def given() -> list[Value]:
            return [f.load(f.at(peepholes, at + g * LANES), f.vec) for g in range(3)]

        return f.choose(peepholes.compare("ne", 0), given, lambda: [f.const(0.0, f.vec)] * 3)

    def _activation(self, i: int) -> Applied:
        f = self.f
        clip, alpha, beta = f.fields(self.args, RecurrentArgs, "clip", f"alpha{i}", f"beta{i}")
        function, _, _ = ACTIVATIONS[self.form.activations[i]]

        def apply(x: Value) -> Value:
            # As in onnxruntime, sums are clipped, LSTM's cell state is not.
            if i < 2:
                limit = f.splat(clip)
                x = f.select(x > limit, limit, x)
                x = f.select(x < -limit, -limit, x)
            return function(f, x, f.splat(alpha), f.splat(beta))

        return apply

    def _integers(self, *names: str) -> list[Value]:
        return self.f.fields(self.args, RecurrentArgs, *names)
