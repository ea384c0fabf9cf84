"""Decide whether a call is allowed, by the caller's credentials and rate."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

from pliant.errors import NodeError
from pliant.serve.access.foreign_pages import foreign_page
from pliant.serve.access.rates import ClientRates, RateLimiter, client_at
from pliant.serve.access.roles import Role, RouteRule, rule_for
from pliant.serve.access.security import AccessTokens, RoleToken

_LAST: Final = {"connection": "close"}


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """The caller-related data of a call over HTTP or gRPC, from `address`.

    `authorizations` are its Authorization headers. `of_node` is set if the call uses what only other nodes
    may use. `names` are those of the client certificate; empty without one. `host` is the Host header.
    `origin` is the site of the web page that made the browser send the call; None for other callers.
    """

    method: str
    path: str
    authorizations: Sequence[str]
    of_node: bool = False
    names: tuple[str, ...] = ()
    address: str = ""
    host: str = ""
    origin: str | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a call: HTTP status, reason and headers."""

    status: int
    why: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AccessGrant:
    """An allowed call; its bytes are counted for `client`, or not counted if it is None."""

    client: str | None


_UNCOUNTED: Final = AccessGrant(None)


@final
class AccessControl:
    """Access control by `tokens`, and rate limits by `rates`.

    A client is the holder of one token, or else an address. Nodes with a peer token (and a certificate, if
    certificates are requested) and operators have no rate limit: forwarded requests were counted at the first
    node. If callers must be on this machine
    (`is_local`) and need no token, web pages of other sites in their browsers are refused.
    """

    def __init__(
        self,
        tokens: AccessTokens = AccessTokens(),  # noqa: B008 - never changed
        rates: ClientRates = ClientRates(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        asks_certificate: bool = False,
        is_local: bool = False,
    ) -> None:
        self._is_local = is_local
        self._tokens, self._asks_certificate = tokens, asks_certificate
        self._limiter = RateLimiter(rates, clock)

    @property
    def tokens(self) -> AccessTokens:
        """The current tokens."""
        return self._tokens

    def replace_tokens(self, tokens: AccessTokens) -> None:
        """Replace the tokens, also for open connections."""
        self._tokens = tokens

    def replace_rates(self, rates: ClientRates) -> None:
        """Replace the rate limits of a client."""
        self._limiter.replace_rates(rates)

    def admit(self, request: AccessRequest) -> AccessGrant | Refusal:
        """Check a call and count it; health checks are not counted."""
        rule = rule_for(request.method, request.path)
        if not rule.roles:
            return _UNCOUNTED
        known = self._known(request)
        if self._is_local and not self.tokens and (why := foreign_page(request.host, request.origin)):
            return Refusal(403, why, _LAST)
        client = self._client(request, known)
        if client is not None and (wait_s := self._limiter.count_request(client)) > 0.0:
            why = f"too many requests or bytes of one client; try again in {wait_s:.3g} s."
            return Refusal(429, why, {"retry-after": str(math.ceil(wait_s))})
        return self._refusal(request, rule, known) or AccessGrant(client)

    def allows(self, request: AccessRequest, method: str, path: str) -> bool:
        """Whether the caller of an admitted call may also call `method` of `path`; this is not counted."""
        rule = rule_for(method, path)
        return not rule.roles or self._refusal(request, rule, self._known(request)) is None

    @property
    def counts_bytes(self) -> bool:
        """Whether bytes are limited, so that calls must `spend` them."""
        return self._limiter.counts_bytes

    def spend(self, admitted: AccessGrant, n_bytes: int) -> None:
        """Count received or sent bytes."""
        if admitted.client is not None:
            self._limiter.count_bytes(admitted.client, n_bytes)

    def _refusal(self, request: AccessRequest, rule: RouteRule, known: RoleToken | None) -> Refusal | None:
        if self._is_open(rule) and not (request.of_node and self._lacks_certificate(request)):
            return None
        roles = self._roles(request, known)
        if not roles:
            why = (
                "the Authorization header has no valid token: send one `Bearer TOKEN` of a token file."
                if request.authorizations
                else "a bearer token is required: `Authorization: Bearer TOKEN`."
            )
            return Refusal(401, why, {"www-authenticate": "Bearer", **_LAST})
        if request.of_node and Role.PEER not in roles:
            how = "a certificate of --client-ca" if self._asks_certificate else "a token of --peer-token-file"
            return Refusal(403, f"this call is for other nodes only: present {how}.", _LAST)
        if not roles & rule.roles:
            who = " or ".join(sorted(rule.roles))
            why = (
                f"{request.method} {rule.path} needs the role {who}: present a token of {_files(rule.roles)}."
            )
            return Refusal(403, why, _LAST)
        return None

    def check_sender(self, sender: str | None, names: tuple[str, ...]) -> None:
        """Raise NodeError (403) if the name of a node does not match its certificate.

        The default name of a node is its host and port, so the port is ignored.
        """
        if not self._asks_certificate or sender is None:
            return
        if not {sender.lower(), sender.rpartition(":")[0].lower()} & {name.lower() for name in names}:
            raise NodeError(
                f"{sender} does not match its certificate ({', '.join(names)[:200]}): start that node "
                "with --name, or give it a certificate of its name.",
                status=403,
            )

    def peer_token(self, authorization: str | None) -> str | None:
        """The peer token in a header; with it, change notifications are sent to its node."""
        known = self.tokens.find(authorization)
        return known.token if known is not None and known.role is Role.PEER else None

    def _is_open(self, rule: RouteRule) -> bool:
        """Without any tokens, all callers may read what operators may read."""
        has_none = not self.tokens and not self.tokens.has(Role.OPERATOR)
        return has_none and Role.OPERATOR in rule.roles and not rule.is_guarded

    def _known(self, request: AccessRequest) -> RoleToken | None:
        """The token of the call; None if it has more than one Authorization header."""
        return self.tokens.find(request.authorizations[0]) if len(request.authorizations) == 1 else None

    def _lacks_certificate(self, request: AccessRequest) -> bool:
        """Whether the caller is a client at most, because it has not the certificate of a node."""
        return self._asks_certificate and not request.names

    def _roles(self, request: AccessRequest, known: RoleToken | None) -> frozenset[Role]:
        """Roles by token. If client certificates are requested, only callers with one are peers."""
        roles = {known.role} if known is not None else set() if self.tokens else {Role.CLIENT, Role.PEER}
        if self._lacks_certificate(request):
            return frozenset(Role.CLIENT if role is Role.PEER else role for role in roles)
        if self._asks_certificate and not self.tokens.has(Role.PEER):
            roles.add(Role.PEER)
        return frozenset(roles)

    def _client(self, request: AccessRequest, known: RoleToken | None) -> str | None:
        if known is None:
            return client_at(request.address)
        is_client = known.role is Role.CLIENT or (
            known.role is Role.PEER and self._lacks_certificate(request)
        )
        return known.digest.hex() if is_client else None


def _files(roles: frozenset[Role]) -> str:
    names = {
        Role.CLIENT: "--token-file",
        Role.PEER: "--peer-token-file",
        Role.OPERATOR: "--operator-token-file",
    }
    return " or ".join(names[role] for role in sorted(roles))
