"""The optimal bits under the AIBs, as an integer program (HiGHS): a reference for the heuristics."""

from collections.abc import Sequence

import highspy
import numpy as np

from pliant.arrays import Float
from pliant.compiler.layout.highs_solver import HighsSolver
from pliant.errors import BudgetError
from pliant.ir.bitwidths import FULL_BITS, LOWEST_BITS, PLANES
from pliant.plan.submodel.io_plan import Ledger


def fill_exact(
    ledger: Ledger,
    weights: Float[np.ndarray, "n m"],
    errors: Sequence[float],
    *,
    time_limit_s: float = 10.0,
    gap: float = 1e-6,
) -> None:
    """Raise the shards of `ledger` (at their lowest bits) to the bits of most fidelity that fit.

    Maximises the weighted drop in error, subject to the AIBs after every layer; each contiguous run of slices
    in a part costs one read's latency, as in the ledger. The result is within `gap` of the optimum, or the
    best found in `time_limit_s`. Raises BudgetError if not even the lowest bits fit.
    """
    if not ledger.is_valid:
        raise BudgetError("the lowest bits already overspend the IO budgets; nothing can be allocated.")
    model = _BitsProgram(ledger, weights, errors)
    bits = model.solve(time_limit_s, gap)
    ledger.force_bits(bits)


class _BitsProgram:
    """Binary x[k, s, b]: shard s of layer k has b bits; continuous r[k, part, s]: a read begins there."""

    def __init__(self, ledger: Ledger, weights: Float[np.ndarray, "n m"], errors: Sequence[float]) -> None:
        self.ledger = ledger
        self.options: list[tuple[int, int, int]] = []
        self.values: list[float] = []
        for k in range(ledger.n):
            for s in range(ledger.m):
                now = ledger.bits[k][s]
                for bits in [b for b in ledger.ladder if b >= now]:
                    self.options.append((k, s, bits))
                    self.values.append(float(weights[k, s]) * (0.0 if bits == FULL_BITS else -errors[bits]))
        n_parts = PLANES + 1
        self.n_x = len(self.options)
        self.n_r = ledger.n * n_parts * ledger.m
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self._one_choice_each()
        self._reads_begin()
        self._budgets()

    def solve(self, time_limit_s: float, gap: float) -> list[list[int]]:
        solver = HighsSolver()
        solver.setOptionValue("time_limit", time_limit_s)
        solver.setOptionValue("mip_rel_gap", gap)
        solver.passModel(self._program())
        solver.run()
        x = np.asarray(solver.getSolution().col_value)
        if len(x) == 0 or solver.getInfo().primal_solution_status != 2:
            return [list(row) for row in self.ledger.bits]
        bits = [list(row) for row in self.ledger.bits]
        for (k, s, b), chosen in zip(self.options, x[: self.n_x], strict=True):
            if chosen > 0.5:
                bits[k][s] = b
        return bits

    def _needs(self, k: int, s: int, bits: int) -> list[int]:
        """Return the parts that shard s of layer k reads to run with `bits`."""
        base = LOWEST_BITS if self.ledger.is_anytime else 0
        parts = [*range(base), PLANES] if bits == FULL_BITS else [*range(bits)]
        return [part for part in parts if not self.ledger.held_masks[k][part] >> s & 1]

    def _one_choice_each(self) -> None:
        of: dict[tuple[int, int], dict[int, float]] = {}
        for i, (k, s, _) in enumerate(self.options):
            of.setdefault((k, s), {})[i] = 1.0
        self.rows += [(row, 1.0, 1.0) for row in of.values()]

    def _reads_begin(self) -> None:
        """r[k, part, s] >= y[k, part, s] - y[k, before it in the file], where y says what is read."""
        reads: dict[tuple[int, int, int], list[int]] = {}
        for i, (k, s, bits) in enumerate(self.options):
            for part in self._needs(k, s, bits):
                reads.setdefault((k, part, s), []).append(i)
        for (k, part, s), mine in reads.items():
            row = dict.fromkeys(mine, -1.0)
            before = self.ledger.before.get((part, s))
            # If full fidelity is read in pieces, each slice is charged as its own piece.
            if before is not None and (part < PLANES or self.ledger.full_chunk >= self.ledger.m):
                row |= dict.fromkeys(reads.get((k, *before), []), 1.0)
            row[self._r(k, part, s)] = 1.0
            self.rows.append((row, 0.0, highspy.kHighsInf))

    def _budgets(self) -> None:
        ledger = self.ledger
        spent: dict[int, float] = {}
        total_s = 0.0
        for k in range(ledger.n):
            for i, (layer, s, bits) in enumerate(self.options):
                if layer == k:
                    needs = self._needs(k, s, bits)
                    spent[i] = sum(ledger.full_s if part == PLANES else ledger.plane_s for part in needs)
            for part in range(PLANES + 1):
                for s in range(ledger.m):
                    spent[self._r(k, part, s)] = ledger.latency_s
            total_s += ledger.load_s[k]
            self.rows.append((dict(spent), -highspy.kHighsInf, ledger.spare_s[k] + total_s))
        if ledger.limit_bytes is not None:
            for k in range(ledger.n):
                row = {i: self._bytes(*option) for i, option in enumerate(self.options) if option[0] == k}
                self.rows.append((row, -highspy.kHighsInf, float(ledger.limit_bytes)))

    def _bytes(self, k: int, s: int, bits: int) -> float:
        ledger = self.ledger
        needs = self._needs(k, s, bits)
        return float(sum(ledger.full_bytes if part == PLANES else ledger.plane_bytes for part in needs))

    def _r(self, k: int, part: int, s: int) -> int:
        return self.n_x + (k * (PLANES + 1) + part) * self.ledger.m + s

    def _program(self) -> highspy.HighsLp:
        lp = highspy.HighsLp()
        n = self.n_x + self.n_r
        lp.num_col_ = n
        lp.num_row_ = len(self.rows)
        lp.sense_ = highspy.ObjSense.kMaximize
        lp.col_cost_ = np.array([*self.values, *[0.0] * self.n_r])
        lp.col_lower_ = np.zeros(n)
        lp.col_upper_ = np.ones(n)
        lp.integrality_ = [highspy.HighsVarType.kInteger] * self.n_x + [
            highspy.HighsVarType.kContinuous
        ] * self.n_r
        lp.row_lower_ = np.array([low for _, low, _ in self.rows])
        lp.row_upper_ = np.array([high for _, _, high in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row) for row, _, _ in self.rows)])
        lp.a_matrix_.index_ = np.array([i for row, _, _ in self.rows for i in row])
        lp.a_matrix_.value_ = np.array([v for row, _, _ in self.rows for v in row.values()])
        return lp
