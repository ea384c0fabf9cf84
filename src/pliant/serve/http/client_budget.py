"""Bytes that a node keeps for its clients, bounded in all and for each address."""

from collections import Counter
from typing import Protocol, final


class Holder(Protocol):
    """What keeps bytes: a body that is being read, an answer that is being sent.

    `evict` has it let go of them soon; it counts for nothing from then on.
    """

    @property
    def address(self) -> str: ...
    def evict(self) -> None: ...


@final
class ByteBudget:
    """At most `most` bytes in all, and `most_client` for each client's address.

    Where that would be exceeded, holders that are `evictable` lose theirs, the oldest first, of the address
    that has too many or else of that with most: who is slow, or stands still, makes room for who is not.
    """

    def __init__(self, most: int, most_client: int) -> None:
        self._most, self._most_client = most, most_client
        self._sizes: dict[Holder, int] = {}
        self._evictable: dict[Holder, None] = {}
        self._by_address: Counter[str] = Counter()
        self.n_bytes = 0
        """What is held now."""

    def take(self, holder: Holder, n_bytes: int) -> bool:
        """`n_bytes` more for `holder`, which is evictable until it is `kept`.

        False, and none taken, where others cannot make room, or `holder` itself would be the first to.
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

    def keep(self, holder: Holder) -> None:
        """From now on its bytes are not taken away."""
        self._evictable.pop(holder, None)

    def release(self, holder: Holder) -> None:
        """It lets go of all its bytes; safe to say twice."""
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

    def _victim(self, address: str, n_bytes: int) -> Holder | None:
        if self._by_address[address] + n_bytes <= self._most_client:
            sizes = Counter({holder.address: self._by_address[holder.address] for holder in self._evictable})
            if not sizes:
                return None
            address = max(sizes, key=sizes.__getitem__)
        return next((holder for holder in self._evictable if holder.address == address), None)
