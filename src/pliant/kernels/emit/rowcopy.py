"""Copy and fill runs of bytes inside a kernel."""

from pliant.kernels.emit.builder import Function
from pliant.kernels.emit.values import Value, vector

_UNROLL = 4


def copy(f: Function, source: Value, target: Value, n: Value) -> None:
    """Copy `n` >= 0 bytes between regions that do not overlap, without touching other bytes."""
    width = 4 * f.lanes
    f.choose(
        n >= width,
        lambda: _copy_vectors(f, source, target, n, width),
        lambda: _copy_short(f, source, target, n, width // 2),
    )


def fill(f: Function, value: Value, target: Value, n: Value) -> None:
    """Write the scalar `value` to `n` >= 0 consecutive elements at `target`."""
    lanes = 4 * f.lanes // _bytes(value.type)
    many = f.splat(value, lanes)
    whole = n - n % lanes
    with f.each(0, whole, lanes) as i:
        f.store(many, f.at(target, i, value.type))
    with f.each(whole, n) as i:
        f.store(value, f.at(target, i, value.type))


def _copy_vectors(f: Function, source: Value, target: Value, n: Value, width: int) -> list[Value]:
    """Copy at least one vector; the last one may overlap the previous one."""
    step = _UNROLL * width
    type_ = vector(width, "i8")

    def move(offsets: list[Value]) -> None:
        for value, offset in [(f.load(f.at(source, o, "i8"), type_), o) for o in offsets]:
            f.store(value, f.at(target, offset, "i8"))

    whole = n & -step
    with f.each(0, whole, step) as i:
        move([i + k * width for k in range(_UNROLL)])
    with f.each(whole, n - (width - 1), width) as i:
        move([i])
    with f.when((n & (width - 1)).compare("ne", 0)):
        move([n - width])
    return []


def _copy_short(f: Function, source: Value, target: Value, n: Value, width: int) -> list[Value]:
    """Copy less than twice `width` bytes: two pieces that may overlap, recursively by halves."""
    if width < 2:
        with f.when(n > 0):
            f.store(f.load(source, "i8"), target)
        return []
    type_ = f"i{8 * width}" if width <= 8 else vector(width, "i8")

    def ends() -> list[Value]:
        last = n - width
        pieces = [f.load(source, type_, 1), f.load(f.at(source, last, "i8"), type_, 1)]
        f.store(pieces[0], target, 1)
        f.store(pieces[1], f.at(target, last, "i8"), 1)
        return []

    f.choose(n >= width, ends, lambda: _copy_short(f, source, target, n, width // 2))
    return []


def _bytes(type_: str) -> int:
    return int(type_[1:]) // 8
