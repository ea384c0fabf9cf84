"""The operations on tile registers: as AMX's instructions, or as loops over memory on a portable row.

Eight registers of up to 16 rows of 64 bytes. A configuration of 64 bytes gives the rows and bytes per row of
each (Intel SDM, LDTILECFG): byte 0 is 1, from byte 16 on u16 bytes per row, from byte 48 on u8 rows.
"""

from collections.abc import Sequence
from typing import Literal, Protocol, final

from pliant.kernels.emit.builder import Function, Module
from pliant.kernels.emit.values import Value, vector

TileKind = Literal["int8", "bf16"]
"""The operands of a product of tiles: unsigned bytes of A and signed ones of B, or pairs of bfloat16."""

CONFIG_BYTES = 64
N_TILES, TILE_ROWS, TILE_BYTES = 8, 16, 64
_ROW_WORDS = TILE_BYTES // 4
_INSTRUCTIONS: dict[TileKind, str] = {"int8": "llvm.x86.tdpbusd", "bf16": "llvm.x86.tdpbf16ps"}
_SIZES_AT, _ROWS_AT = 16, 48


class TileOps(Protocol):
    """Tiles by number, in one function; the loaded configuration gives the size of each."""

    def configure(self, config: Value) -> None:
        """Load a configuration; all tiles are zero afterwards."""
        ...

    def release(self) -> None:
        """Release the registers, so that they need not be saved."""
        ...

    def zero(self, tile: int) -> None: ...

    def load(self, tile: int, at: Value, stride: Value) -> None:
        """Rows that are `stride` bytes apart."""
        ...

    def store(self, tile: int, at: Value, stride: Value) -> None: ...

    def multiply(self, kind: TileKind, c: int, a: int, b: int) -> None:
        """c += a @ b, words of four bytes or two bfloat16 at a time; sums are int32 or float32."""
        ...


def tile_ops(f: Function, config: Value) -> TileOps:
    """The tile operations of a function's row with the loaded configuration. Call this first in a
    function.
    """
    return _EmulatedTiles(f, config) if f.isa.is_portable else _AmxTiles(f)


def write_tile_ops(module: Module) -> None:
    """Define the functions that a portable row calls."""
    if module.isa.is_portable:
        _write_move(module, "tile_load", is_load=True)
        _write_move(module, "tile_store", is_load=False)
        _write_multiply(module, "int8")
        _write_multiply(module, "bf16")


def write_configure(module: Module) -> None:
    """Define `configure(config, upper rows, lower rows, words)`, which writes a configuration and loads it.

    Tiles 0 and 1 hold upper rows of C, 2 and 3 lower ones, 4 and 5 those of A, 6 and 7 B.
    """
    params = [("config", "ptr"), ("upper", "i64"), ("lower", "i64"), ("words", "i64")]
    with module.function("configure", params, attributes="noinline", is_exported=False) as f:
        config, upper, lower, words = f.params
        wide, whole = words * 4, f.const(TILE_BYTES)
        shapes = [(upper, whole)] * 2 + [(lower, whole)] * 2
        shapes += [(upper, wide), (lower, wide), (words, whole), (words, whole)]
        for i in range(0, CONFIG_BYTES, 8):
            f.store(f.const(int(i == 0)), f.at(config, i, "i8"))
        for tile, (rows, size) in enumerate(shapes):
            f.store(f.cast("trunc", size, "i16"), f.at(config, _SIZES_AT + 2 * tile, "i8"))
            f.store(f.cast("trunc", rows, "i8"), f.at(config, _ROWS_AT + tile, "i8"))
        tile_ops(f, config).configure(config)
        f.ret()


@final
class _AmxTiles:
    """AMX itself. LLVM knows these registers by number only, so it neither moves nor spills them."""

    def __init__(self, f: Function) -> None:
        self._f = f

    def configure(self, config: Value) -> None:
        self._f.call("llvm.x86.ldtilecfg", "void", config)

    def release(self) -> None:
        self._f.call("llvm.x86.tilerelease", "void")

    def zero(self, tile: int) -> None:
        self._do("llvm.x86.tilezero", (tile,), ())

    def load(self, tile: int, at: Value, stride: Value) -> None:
        self._do("llvm.x86.tileloadd64", (tile,), (at, stride))

    def store(self, tile: int, at: Value, stride: Value) -> None:
        self._do("llvm.x86.tilestored64", (tile,), (at, stride))

    def multiply(self, kind: TileKind, c: int, a: int, b: int) -> None:
        self._do(_INSTRUCTIONS[kind], (c, a, b), ())

    def _do(self, name: str, tiles: Sequence[int], others: Sequence[Value]) -> None:
        self._f.call(name, "void", *(self._f.const(t, "i8") for t in tiles), *others)


@final
class _EmulatedTiles:
    """Tiles as blocks of 1024 bytes on the stack, for CPUs without AMX."""

    def __init__(self, f: Function, config: Value) -> None:
        self._f, self._config = f, config
        self._at: dict[int, Value] = {}
        if f.lines:  # each iteration of a loop would use more stack
            return
        for tile in range(N_TILES):
            self._at[tile] = f.op(f"alloca [{TILE_ROWS * TILE_BYTES} x i8], align 64", "ptr")

    def configure(self, config: Value) -> None:
        pass

    def release(self) -> None:
        pass

    def zero(self, tile: int) -> None:
        f = self._f
        with f.each(0, TILE_ROWS * _ROW_WORDS, f.lanes) as i:
            f.store(f.const(0, vector(f.lanes, "i32")), f.at(self._at[tile], i, "i32"), 4 * f.lanes)

    def load(self, tile: int, at: Value, stride: Value) -> None:
        self.zero(tile)
        self._f.call("tile_load", "void", self._at[tile], at, stride, *self._shape(tile))

    def store(self, tile: int, at: Value, stride: Value) -> None:
        self._f.call("tile_store", "void", self._at[tile], at, stride, *self._shape(tile))

    def multiply(self, kind: TileKind, c: int, a: int, b: int) -> None:
        rows, _ = self._shape(c)
        _, size = self._shape(a)
        self._f.call(f"tile_{kind}", "void", self._at[c], self._at[a], self._at[b], rows, size >> 2)

    def _shape(self, tile: int) -> tuple[Value, Value]:
        """Rows, and bytes per row."""
        f = self._f
        rows = f.load(f.at(self._config, _ROWS_AT + tile, "i8"), "i8")
        size = f.load(f.at(self._config, _SIZES_AT + 2 * tile, "i8"), "i16")
        return f.cast("zext", rows, "i64"), f.cast("zext", size, "i64")


def _write_move(module: Module, name: str, *, is_load: bool) -> None:
    """`tile_load(tile, at, stride, rows, bytes)`, and the reverse."""
    params = [("tile", "ptr"), ("at", "ptr"), ("stride", "i64"), ("rows", "i64"), ("size", "i64")]
    with module.function(name, params, attributes="noinline", is_exported=False) as f:
        tile, at, stride, rows, size = f.params
        with f.each(0, rows) as row, f.each(0, size) as i:
            ends = f.at(at, row * stride + i, "i8"), f.at(tile, row * TILE_BYTES + i, "i8")
            source, to = ends if is_load else ends[::-1]
            f.store(f.load(source, "i8"), to)
        f.ret()


def _write_multiply(module: Module, kind: TileKind) -> None:
    """`tile_<kind>(c, a, b, rows, words)`: whole rows of B at once.

    As the SDM defines it, bfloat16 products of even and of odd positions are summed separately, each rounded
    once, and their sum is added to C.
    """
    params = [("c", "ptr"), ("a", "ptr"), ("b", "ptr"), ("rows", "i64"), ("words", "i64")]
    with module.function(f"tile_{kind}", params, attributes="noinline", is_exported=False) as f:
        c, a, b, rows, words = f.params
        integers, floats = vector(_ROW_WORDS, "i32"), vector(_ROW_WORDS, "float")
        sums = integers if kind == "int8" else floats
        parts = 4 if kind == "int8" else 2
        with f.each(0, rows) as row:
            to = f.at(c, row * _ROW_WORDS, "i32")
            with f.loop(0, words, carry=[f.const(0, sums)] * parts) as loop:
                x = f.splat(f.load(f.at(a, row * _ROW_WORDS + loop.index, "i32"), "i32"), _ROW_WORDS)
                y = f.load(f.at(b, loop.index * _ROW_WORDS, "i32"), integers, TILE_BYTES)
                made = _bytes(x, y) if kind == "int8" else _bfloats(f, x, y)
                if kind == "int8":
                    loop.carry([t + p * q for t, (p, q) in zip(loop.carried, made, strict=True)])
                else:
                    loop.carry([f.fma(p, q, t) for t, (p, q) in zip(loop.carried, made, strict=True)])
            first, *others = loop.carried
            for other in others:
                first = first + other
            f.store(f.load(to, sums, TILE_BYTES) + first, to, TILE_BYTES)
        f.ret()


def _bytes(x: Value, y: Value) -> list[tuple[Value, Value]]:
    """Unsigned bytes of x paired with signed bytes of y."""
    f = x.function
    by = f.const(24, y.type)
    signed = [f.op(f"ashr {y << (24 - 8 * i)}, {by.text}", y.type) for i in range(4)]
    return [((x >> (8 * i)) & 255, signed[i]) for i in range(4)]


def _bfloats(f: Function, x: Value, y: Value) -> list[tuple[Value, Value]]:
    """The lower and the upper halves, as float32."""
    floats = x.type.replace("i32", "float")
    return [
        (f.cast("bitcast", a, floats), f.cast("bitcast", b, floats))
        for a, b in ((x << 16, y << 16), (x & -65536, y & -65536))
    ]
