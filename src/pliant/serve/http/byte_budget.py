"""Limits on the bytes that a node buffers, in total and for each client address."""

from collections import Counter
from typing import Protocol, final


class BufferHolder(Protocol):
    """A holder of buffered bytes: a request body being received, or a response being sent.

    `evict` makes it free them soon; they no longer count from then on.
    """

    @property
    def address(self) -> str: ...
    def evict(self) -> None: ...


@final
class ByteBudget:
    """At most `most` bytes in total, and `most_client` for each client address.

    When a limit would be exceeded, evictable holders are evicted, oldest first: those of the address over its
    limit, or else those of the address with the most bytes. Slow or stalled clients thus make room for
    others.
    """

    def __init__(self, most: int, most_client: int) -> None:
        self._most, self._most_client = most, most_client
        self._sizes: dict[BufferHolder, int] = {}
        self._evictable: dict[BufferHolder, None] = {}
        self._by_address: Counter[str] = Counter()
        self.n_bytes = 0
        """The number of bytes held now."""

    def take(self, holder: BufferHolder, n_bytes: int) -> bool:
        """Take `n_bytes` more for `holder`, which is evictable until `keep` is called.

        Returns False, and takes nothing, if others cannot make room or `holder` would be evicted first.
        """
        if holder not in self._sizes:
            self._evictable[holder] = None
        while self._is_too_much(holder.address, n_bytes):
            victim = self._victim(holder.address, n_bytes)
            if victim is None or victim is holder:
                if holder not in self._sizes:
                    self._evictable.pop(holder)
                return False
            self.release(victim)
            victim.evict()
        self._sizes[holder] = self._sizes.get(holder, 0) + n_bytes
        self._by_address[holder.address] += n_bytes
        self.n_bytes += n_bytes
        return True

    def keep(self, holder: BufferHolder) -> None:
        """Make `holder` non-evictable."""
        self._evictable.pop(holder, None)

    def release(self, holder: BufferHolder) -> None:
        """Free all bytes of `holder`; idempotent."""
        self._evictable.pop(holder, None)
        n_bytes = self._sizes.pop(holder, None)
        if n_bytes is None:
            return
        self.n_bytes -= n_bytes
        self._by_address[holder.address] -= n_bytes
        if not self._by_address[holder.address]:
            del self._by_address[holder.address]

    def _is_too_much(self, address: str, n_bytes: int) -> bool:
        return self.n_bytes + n_bytes > self._most or self._by_address[address] + n_bytes > self._most_client

    def _victim(self, address: str, n_bytes: int) -> BufferHolder | None:
        if self._by_address[address] + n_bytes <= self._most_client:
            sizes = Counter({holder.address: self._by_address[holder.address] for holder in self._evictable})
            if not sizes:
                return None
            address = max(sizes, key=sizes.__getitem__)
        return next((holder for holder in self._evictable if holder.address == address), None)
