"""The rows of one request, which a queue admits or refuses together."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from pliant.serve.answers.admission import Admission


@dataclass(eq=False, slots=True)
class GroupShare:
    """What one queue keeps for a request of several rows.

    `slots` are the planned times of rows that have not joined the queue yet, `n_places` those of its places
    that the rows may take at once, of which `n_waiting` are taken. `refusal` is set if it refused the
    request.
    """

    n_places: int = 0
    n_waiting: int = 0
    slots: list[int] = field(default_factory=list)
    is_admitted: bool = False
    refusal: Exception | None = None

    @property
    def n_reserved(self) -> int:
        """Places that are kept for rows which have not joined the queue yet."""
        return max(min(self.n_places - self.n_waiting, len(self.slots)), 0)


@final
class RowGroup:
    """A request of `n_rows` rows, of which at most `n_at_once` are asked at once; `close` it at its end."""

    def __init__(self, n_rows: int, n_at_once: int) -> None:
        self.n_left, self.n_at_once = n_rows, min(n_at_once, n_rows)
        self._shares: dict[Admission, GroupShare] = {}

    def share(self, admission: "Admission") -> GroupShare:
        """What `admission` keeps for this request."""
        return self._shares.setdefault(admission, GroupShare())

    def n_places(self, admission: "Admission") -> int:
        """Places that its next row needs in a queue: those of all rows that are asked at once, until it is
        admitted; then one, for a row that has left and returns."""
        return 1 if self.share(admission).is_admitted else max(min(self.n_at_once, self.n_left), 1)

    def finish_row(self) -> None:
        """A row was answered, by any endpoint."""
        self.n_left -= 1
        for admission, share in self._shares.items():
            admission.release(share, self.n_left)

    def close(self) -> None:
        """Release all places and times that are still kept."""
        self.n_left = 0
        for admission, share in self._shares.items():
            admission.release(share, 0)
