"""The measured costs of one device, and interpolation between them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pliant.errors import ProfileError
from pliant.ir.dilation import Dilation, require_emulable
from pliant.ir.link import Link
from pliant.ir.times.timing import Timing, TimingCurve

MAX_DISTURBED = 0.03
"""Share of disturbed samples up to which a profile needs no correction for other processes."""


@dataclass(frozen=True, slots=True)
class ShardRead:
    """T_io(k) (STI 5.2): one cold read of one shard in `bits` bits."""

    bits: int
    n_bytes: int
    time: Timing


@dataclass(frozen=True, slots=True)
class LayerTime:
    """T_comp(l, m) (STI 5.2): one layer, including the decoding of 6-bit shards, alone and during IO."""

    length: int
    width: int
    alone: Timing
    with_io: Timing


@dataclass(frozen=True, slots=True)
class Overhead:
    """The time of a run outside its layers at `length` tokens."""

    length: int
    tokenise: Timing
    embed: Timing
    head: Timing


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One device running layers of one shape.

    `subject` names the measured model shape, `io_method` how reads were kept cold. `frequency_Hz` is the
    clock rate of T_comp; `frequency_reason` is the reason if it is missing, or the rates that it was
    interpolated from. `disk` and `disk_p95` are the lines through the median and the 95th percentile of reads
    of many sizes; `io_slowdown` is the slow-down of reads during compute. All times are as measured; for an
    emulated device, `dilation` is the factor that its costs include (ir/cost.py). `disturbed` is the share of
    the samples, 0 to 1, in which other processes held the cores.
    """

    cpu: str
    n_threads: int
    memory_bytes: int
    frequency_Hz: float | None
    frequency_reason: str | None
    subject: str
    io_method: str
    reads: tuple[ShardRead, ...]
    disk: Link
    disk_p95: Link
    layers: tuple[LayerTime, ...]
    overheads: tuple[Overhead, ...]
    io_slowdown: float = 1.0
    dilation: Dilation = Dilation()  # noqa: RUF009 - frozen
    disturbed: float = 0.0

    def __post_init__(self) -> None:
        require_emulable(self.dilation)
        if not self.layers or not self.overheads:
            raise ProfileError(f"the profile of {self.subject} on {self.cpu} is empty; profile again.")

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(sorted({s.width for s in self.layers}))

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(sorted({s.length for s in self.layers}))

    def layer_time(self, length: int, width: int) -> LayerTime:
        """Return T_comp at any `length` up to the longest measured; `width` must be a measured one."""
        rows = [s for s in self.layers if s.width == width]
        if not rows:
            raise ProfileError(f"width {width} was not measured, only {self.widths}; profile again.")
        alone = _between([(s.length, s.alone) for s in rows], length)
        with_io = _between([(s.length, s.with_io) for s in rows], length)
        return LayerTime(length, width, alone, with_io)

    def overhead(self, length: int) -> Overhead:
        """Return tokenising, embedding and head at any `length` up to the longest measured."""
        rows = self.overheads
        return Overhead(
            length,
            _between([(o.length, o.tokenise) for o in rows], length),
            _between([(o.length, o.embed) for o in rows], length),
            _between([(o.length, o.head) for o in rows], length),
        )


def emulate(profile: DeviceProfile, dilation: Dilation) -> DeviceProfile:
    """Return the profile of a device that is `dilation` times slower than that of `profile`."""
    return replace(profile, dilation=profile.dilation.times(dilation))


def interpolate_profiles(profiles: Sequence[DeviceProfile], frequency_Hz: float) -> DeviceProfile | None:
    """Interpolate T_comp(l, m, freq) (STI 5.2) of one device from `profiles` around `frequency_Hz`.

    Between two rates, times are linear in the clock's period: cycles scale with it, memory does not. Reads
    are those at the lower rate. None if the rate is not between two profiles of the same layers.
    """
    known = sorted((1 / p.frequency_Hz, i) for i, p in enumerate(profiles) if p.frequency_Hz)
    period_s = 1 / frequency_Hz
    fast = [(s, profiles[i]) for s, i in known if s <= period_s]
    slow = [(s, profiles[i]) for s, i in known if s >= period_s]
    if not fast or not slow or fast[-1] == slow[0]:
        return fast[-1][1] if fast and slow else None
    (high_s, high), (low_s, low) = fast[-1], slow[0]
    if [(s.length, s.width) for s in high.layers] != [(s.length, s.width) for s in low.layers]:
        return None

    def between(at_high: Timing, at_low: Timing) -> Timing:
        return TimingCurve(((high_s, at_high), (low_s, at_low))).at(period_s)

    rates = f"{1e-9 / low_s:.2f} and {1e-9 / high_s:.2f} GHz"
    return replace(
        low,
        frequency_Hz=frequency_Hz,
        frequency_reason=f"not measured at this rate, but between {rates}; `pliant profile` measures it",
        layers=tuple(
            replace(s, alone=between(h.alone, s.alone), with_io=between(h.with_io, s.with_io))
            for h, s in zip(high.layers, low.layers, strict=True)
        ),
        overheads=tuple(
            replace(
                s,
                tokenise=between(h.tokenise, s.tokenise),
                embed=between(h.embed, s.embed),
                head=between(h.head, s.head),
            )
            for h, s in zip(high.overheads, low.overheads, strict=True)
        ),
    )


def _between(samples: Sequence[tuple[int, Timing]], length: int) -> Timing:
    """Interpolate linearly between measured lengths: an upper bound, as time grows at least linearly.

    Below the shortest length, the shortest is used; above the longest, raises ProfileError.
    """
    ordered = sorted(samples, key=lambda s: s[0])
    longest = ordered[-1][0]
    if not 1 <= length <= longest:
        raise ProfileError(f"{length} tokens are beyond the {longest} that were profiled; profile again.")
    return TimingCurve(ordered).at(length)
