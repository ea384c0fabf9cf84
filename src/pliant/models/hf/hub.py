"""From what a user calls a model to the directory that holds it. Knows nothing of what is inside."""

import re
from collections.abc import Callable
from pathlib import Path

from pliant.errors import ModelError
from pliant.settings import user_path

ANSWER_TIMEOUT_S = 5.0
# "name" or "owner/name" as the hub spells them; anything else was meant as a path.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILES = ["*.json", "*.safetensors", "*/config.json"]


def resolve(source: str, download: Callable[[str], Path] | None = None) -> Path:
    """The directory `source` names: itself when it exists, else the hub's model of that id.

    `download` fetches a hub id, by default through huggingface_hub (its cache, HF_HUB_OFFLINE and
    HF_TOKEN hold). Raises ModelError for a path that is not a directory, when huggingface_hub is not
    installed, and when the hub gives no answer within ANSWER_TIMEOUT_S or no model.
    """
    path = user_path(source)
    if source and path.is_dir():
        return path
    if source and path.exists():
        raise ModelError(f"{source} is a file; name the directory that holds config.json.")
    if not _HUB_ID.fullmatch(source):
        raise ModelError(f"there is no directory {source!r}, and it is no hub id (owner/name) either.")
    return (download or _from_hub)(source)


def _from_hub(name: str) -> Path:
    try:
        import huggingface_hub
    except ImportError as e:
        raise ModelError(
            f"there is no directory {name!r}, and huggingface_hub, which could fetch it, is not installed: "
            "pip install 'pliant[hub]', or download the model yourself and name its directory."
        ) from e
    # The library has changed its transport, and so its network errors, with every major version.
    try:
        revision = huggingface_hub.HfApi().model_info(name, timeout=ANSWER_TIMEOUT_S).sha
    except Exception as unreachable:  # noqa: BLE001
        return _from_cache(name, unreachable)
    try:
        return Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=_FILES))
    except Exception as e:
        raise ModelError(f"the download of {name!r} from the hub failed: {_first_line(e)}. Try again.") from e


def _from_cache(name: str, unreachable: Exception) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
    except Exception as e:
        raise ModelError(
            f"there is no directory {name!r}, the hub did not give a model of that name (offline, mistyped "
            f"or private: {_first_line(unreachable)}), and none was downloaded before. "
            "Check the name and the network, or name a local directory."
        ) from e


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
