"""Several models at one address: each request goes to the application of the model that it names."""

from collections.abc import Mapping
from typing import final
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from pliant.route.node_identity import MODEL_HEADER

_MODELS = "/v2/models/"
_IDENTITY = MODEL_HEADER.lower().encode()


@final
class ModelApps:
    """An ASGI application of `apps` by the models' names, and their content hashes in `identities`.

    A path names the model, or `?model=`, or what another node says with a message to this one. A request
    that names none of them is the first one's.
    """

    def __init__(self, apps: Mapping[str, ASGIApp], identities: Mapping[str, str]) -> None:
        self._apps = apps
        self._first = next(iter(apps))
        self._named = {identity.encode(): name for name, identity in identities.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self._first if scope["type"] != "http" else self._model_of(scope)
        await self._apps[name](scope, receive, send)

    def _model_of(self, scope: Scope) -> str:
        path: str = scope["path"]
        if path.startswith(_MODELS):
            asked = [path[len(_MODELS) :].partition("/")[0]]
        else:
            asked = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=16).get("model", [])
        told = [self._named.get(value, "") for name, value in scope["headers"] if name == _IDENTITY]
        return next((name for name in (*asked, *told) if name in self._apps), self._first)
