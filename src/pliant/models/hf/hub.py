"""Download a model of the Hugging Face hub, by its id."""

from pathlib import Path

from pliant.errors import ModelError

ANSWER_TIMEOUT_S = 5.0
_FILES = ["*.json", "*.safetensors", "*/config.json"]


def download_model(name: str) -> Path:
    """The directory of the hub's model `name`, as huggingface_hub downloads and keeps it.

    Its cache, HF_HUB_OFFLINE and HF_TOKEN apply. Raises ModelError when huggingface_hub is not installed,
    when the hub does not answer within ANSWER_TIMEOUT_S, and when it has no such model.
    """
    try:
        import huggingface_hub
    except ImportError as e:
        raise ModelError(
            f"there is no directory {name!r}, and huggingface_hub, which could fetch it, is not installed: "
            "pip install 'pliant[hub]', or download the model yourself and name its directory."
        ) from e
    # The library has changed its transport, and so its network errors, with every major version.
    try:
        huggingface_hub.HfApi().model_info(name, timeout=ANSWER_TIMEOUT_S)
    except Exception as unreachable:  # noqa: BLE001
        return _find_cached(name, unreachable)
    # No commit as revision: the library records only a revision's name, by which `_find_cached` looks.
    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as e:
        raise ModelError(f"the download of {name!r} from the hub failed: {_first_line(e)}. Try again.") from e


def _find_cached(name: str, unreachable: Exception) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
    except Exception as e:
        raise ModelError(
            f"there is no directory {name!r}, the hub has no model of that name (offline, mistyped "
            f"or private: {_first_line(unreachable)}), and none was downloaded before. "
            "Check the name and the network, or name a local directory."
        ) from e


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
