"""The roles that may call each route: the table that the guard enforces and docs/security.md shows."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final


class Role(StrEnum):
    """The role of a caller, by its token or certificate."""

    CLIENT = "client"
    PEER = "peer"
    OPERATOR = "operator"


EVERYBODY: Final = frozenset[Role]()
"""No token is needed."""
ANY: Final = frozenset(Role)
PEERS: Final = frozenset({Role.PEER})
OPERATORS: Final = frozenset({Role.OPERATOR})
GRPC: Final = "/inference.GRPCInferenceService"
"""The path prefix of gRPC methods."""


@dataclass(frozen=True, slots=True)
class RouteRule:
    """The `roles` that may call `method` of `path`; EVERYBODY means that no role is needed.

    A path segment `{name}` matches any one segment, a last segment `{name:path}` any rest. On a node without
    tokens, only `guarded` routes, which change what the node does, still need one.
    """

    method: str
    path: str
    roles: frozenset[Role]
    is_guarded: bool = False

    def fits(self, path: str) -> bool:
        """Whether the rule matches `path`."""
        mine, given = self.path.split("/"), path.split("/")
        if mine[-1].endswith(":path}"):
            n = len(mine) - 1
            mine, given = mine[:n], given[:n] if len(given) > n else []
        return len(mine) == len(given) and all(
            bool(there) if here.startswith("{") else here == there
            for here, there in zip(mine, given, strict=True)
        )


def _of_model(method: str, rest: str, roles: frozenset[Role] = ANY) -> tuple[RouteRule, ...]:
    """The rules of a model's route, with and without a version."""
    bases = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    return tuple(RouteRule(method, f"{base}{rest}", roles) for base in bases)


RULES: Final[tuple[RouteRule, ...]] = (
    RouteRule("GET", "/v2/health/live", EVERYBODY),
    RouteRule("GET", "/v2/health/ready", EVERYBODY),
    RouteRule("GET", "/v2", ANY),
    *_of_model("GET", ""),
    *_of_model("GET", "/ready"),
    *_of_model("POST", "/infer"),
    *_of_model("GET", "/config"),
    *_of_model("GET", "/stats"),
    RouteRule("GET", "/v2/models/stats", ANY),
    RouteRule("POST", "/v1/embeddings", ANY),
    RouteRule("GET", "/metrics", ANY),
    RouteRule("GET", "/openapi.json", ANY),
    RouteRule("GET", "/", EVERYBODY),
    RouteRule("GET", "/page/{name}", EVERYBODY),
    RouteRule("GET", "/v2/pliant/events", OPERATORS),
    RouteRule("GET", "/v2/pliant/answer", OPERATORS),
    RouteRule("GET", "/v2/pliant/outlook", OPERATORS),
    RouteRule("GET", "/v2/pliant/curve", PEERS),
    RouteRule("POST", "/v2/pliant/tell", PEERS),
    RouteRule("GET", "/v2/pliant/route", OPERATORS),
    RouteRule("GET", "/v2/pliant/peers", OPERATORS, is_guarded=True),
    RouteRule("POST", "/v2/pliant/peers", OPERATORS, is_guarded=True),
    RouteRule("POST", "/v2/repository/index", OPERATORS, is_guarded=True),
    RouteRule("POST", "/v2/repository/models/{model}/load", OPERATORS, is_guarded=True),
    RouteRule("POST", "/v2/repository/models/{model}/unload", OPERATORS, is_guarded=True),
    *(RouteRule("POST", f"{GRPC}/{name}", EVERYBODY) for name in ("ServerLive", "ServerReady")),
    *(
        RouteRule("POST", f"{GRPC}/{name}", ANY)
        for name in (
            *("ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer"),
            *("ModelConfig", "ModelStatistics"),
        )
    ),
    *(
        RouteRule("POST", f"{GRPC}/{name}", OPERATORS, is_guarded=True)
        for name in ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload")
    ),
)
"""Rules for HTTP and for gRPC methods (paths called by POST). A route without a rule is not served."""
_UNLISTED: Final = RouteRule("GET", "", ANY)
"""The rule of unknown paths: only callers with some role get the 404."""


@lru_cache(maxsize=64)
def rule_for(method: str, path: str, rules: tuple[RouteRule, ...] = RULES) -> RouteRule:
    """The rule of a call. A method that the path does not have is treated like the path's other methods."""
    asked = "GET" if method == "HEAD" else method
    fitting = [rule for rule in rules if rule.fits(path)]
    return next((rule for rule in fitting if rule.method == asked), fitting[0] if fitting else _UNLISTED)


def routes_without_rule(routes: Iterable[tuple[str, str]], rules: Iterable[RouteRule] = RULES) -> list[str]:
    """The routes (method and path) that have no rule; a route without a rule is not served."""
    ruled = tuple(rules)
    return [
        f"{method} {path}"
        for method, path in routes
        if not any(rule.method == method and rule.fits(path) for rule in ruled)
    ]
