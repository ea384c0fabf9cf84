"""Several models at one address: each request goes to the application of the model that it names."""

from typing import final
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from pliant.errors import NodeError
from pliant.route.node_identity import MODEL_HEADER
from pliant.serve.http.repository_paths import RepositoryPaths
from pliant.serve.repository.live_model import LiveModel
from pliant.serve.repository.model_repository import ModelRepository

_MODELS = "/v2/models/"
_MOST_FIELDS = 16
_IDENTITY = MODEL_HEADER.lower().encode()
_Name = tuple[str, str | None]


@final
class ModelApps:
    """An ASGI application of the models of `repository`, and of the paths of `front` without a model.

    A path names the model and its version, or `?model=`, or what another node says with a message to this
    one. A request that names none of them is the first one's. One for a model that was evicted waits until it
    is loaded again.
    """

    def __init__(self, repository: ModelRepository, front: RepositoryPaths) -> None:
        self._repository, self._front = repository, front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._front.owns(scope):
            await self._front(scope, receive, send)
            return
        asked = self._model_of(scope) or self._first()
        if asked is None or not self._may_lease(scope, *asked):
            await self._front(scope, receive, send)
            return
        try:
            async with self._repository.lease(*asked) as live:
                await live.app(_renamed(scope, live), receive, send)
        except NodeError as error:  # the model's own paths answer with theirs
            await self._front.failure(error)(scope, receive, send)

    def _may_lease(self, scope: Scope, name: str, version: str | None) -> bool:
        """Whether a request is for the model's own paths; it has a model that was evicted loaded again."""
        if self._repository.is_live(name, version):
            return True
        is_probe = scope["path"].endswith("/ready")
        is_served = not is_probe and self._repository.is_served(name, version)
        return is_served and self._front.admits(scope)

    def _model_of(self, scope: Scope) -> _Name | None:
        """The model that a request names, where this node knows it; None for the first one."""
        path: str = scope["path"]
        if path.startswith(_MODELS):
            name, _, rest = path[len(_MODELS) :].partition("/")
            version = rest.split("/")[1] if rest.startswith("versions/") else None
            asked: list[_Name] = [(name, version)]
        else:
            asked = [(name, None) for name in _named(scope["query_string"])]
        known = next((one for one in asked if one[0] in self._repository.names), None)
        return known or self._of_identity(_identities(scope))

    def _first(self) -> _Name | None:
        """The first model that is loaded."""
        return next(((one.key.name, one.key.version) for one in self._repository.live), None)

    def _of_identity(self, told: list[bytes]) -> _Name | None:
        """The model that another node has by its content, whatever it is called there."""
        for live in self._repository.live:
            if (live.node.identity.model or "").encode() in told:
                return live.key.name, live.key.version
        return None


def _named(query: bytes) -> list[str]:
    """The models that a query names: none where it has more fields than any route takes."""
    try:
        return parse_qs(query.decode("latin-1"), max_num_fields=_MOST_FIELDS).get("model", [])
    except ValueError:
        return []


def _identities(scope: Scope) -> list[bytes]:
    """What another node says that its model is."""
    return [value for name, value in scope["headers"] if name == _IDENTITY]


def _renamed(scope: Scope, live: LiveModel) -> Scope:
    """With this node's name of the model in its path, where another node has another name for it."""
    path: str = scope["path"]
    name, _, rest = path.removeprefix(_MODELS).partition("/")
    is_same = (live.node.identity.model or "").encode() in _identities(scope)
    if not path.startswith(_MODELS) or name == live.key.name or not is_same:
        return scope
    return {**scope, "path": f"{_MODELS}{live.key.name}/{rest}"}
