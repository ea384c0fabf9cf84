"""A session of some kind that is open, as the facts about all kinds ask it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pliant.ir.reply import Reply
from pliant.run.session.session import Session
from tests.conformance.session_kind import SessionKind


@dataclass(frozen=True)
class SessionUnderTest:
    """A session of a kind, and where its model lies."""

    kind: SessionKind
    session: Session[Any]
    folder: Path

    def require(self, fact: str) -> None:
        """Skip a fact that does not hold of this kind, for the reason that it gives."""
        if fact in self.kind.exemptions:
            pytest.skip(self.kind.exemptions[fact])

    def answers(self) -> list[bytes]:
        return self.kind.answers(self.session)

    @property
    def sample_input(self) -> Any:
        """What a call takes: a text, or feeds."""
        return self.kind.texts[0] if self.kind.texts else self.kind.feeds(0)

    def reply(self, value: Any) -> Reply[Any]:
        reply = self.session(value)
        assert isinstance(reply, Reply)
        return reply
