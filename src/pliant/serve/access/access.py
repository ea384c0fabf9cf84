"""Decide whether a call may be made, by the tokens and the certificate that its caller shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from pliant.serve.access.roles import Role, RouteRule, rule_for
from pliant.serve.http.security import Tokens

_LAST: Final = {"connection": "close"}


@dataclass(frozen=True, slots=True)
class CallerShown:
    """A call as its caller makes it, over HTTP or gRPC, from `address`.

    `authorizations` are its headers of that name. It is `of_node` where it says what only another node may.
    `names` are those of the certificate that was shown; empty without one.
    """

    method: str
    path: str
    authorizations: Sequence[str]
    of_node: bool = False
    names: tuple[str, ...] = ()
    address: str = ""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a caller is told that may not make a call: a status of HTTP, why, and headers."""

    status: int
    why: str
    headers: Mapping[str, str] = field(default_factory=dict)


@final
class Access:
    """Who may call a node, by the `tokens` that there are now."""

    def __init__(self, tokens: Tokens = Tokens()) -> None:  # noqa: B008 - never changed
        self.tokens = tokens

    def refusal(self, shown: CallerShown) -> Refusal | None:
        """Why a call may not be made; None for one that may."""
        rule = rule_for(shown.method, shown.path)
        if not rule.roles or self._is_open(rule):
            return None
        roles = self._roles(shown)
        if not roles:
            why = "a bearer token is asked for: `Authorization: Bearer TOKEN`."
            return Refusal(401, why, {"www-authenticate": "Bearer", **_LAST})
        if shown.of_node and Role.PEER not in roles:
            why = "what nodes say to each other is for nodes: show a token of --peer-token-file."
            return Refusal(403, why, _LAST)
        if not roles & rule.roles:
            who = " or ".join(sorted(rule.roles))
            why = f"{shown.method} {rule.path} is for the role {who}: show a token of {_files(rule.roles)}."
            return Refusal(403, why, _LAST)
        return None

    def peer_token(self, authorization: str | None) -> str | None:
        """The peer token that a header carries, with which its bearer is told of changes."""
        known = self.tokens.known(authorization)
        return known.token if known is not None and known.role is Role.PEER else None

    def _is_open(self, rule: RouteRule) -> bool:
        """What operators may read, everybody may where a node has no tokens at all."""
        has_none = not self.tokens and not self.tokens.have(Role.OPERATOR)
        return has_none and Role.OPERATOR in rule.roles and not rule.is_guarded

    def _roles(self, shown: CallerShown) -> frozenset[Role]:
        """What the caller is; nobody brings two tokens."""
        known = self.tokens.known(shown.authorizations[0]) if len(shown.authorizations) == 1 else None
        if known is not None:
            return frozenset({known.role})
        return frozenset() if self.tokens else frozenset({Role.CLIENT, Role.PEER})


def _files(roles: frozenset[Role]) -> str:
    names = {
        Role.CLIENT: "--token-file",
        Role.PEER: "--peer-token-file",
        Role.OPERATOR: "--operator-token-file",
    }
    return " or ".join(names[role] for role in sorted(roles))
