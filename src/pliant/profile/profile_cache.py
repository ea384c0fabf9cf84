"""Keep device profiles as JSON, one file a device and model shape."""

import os
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import msgspec

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile


def profile_path(cache: Path, cpu: str, n_threads: int, subject: str, io_method: str) -> Path:
    """Where the profile of this device and model shape lies; another version of pliant has another."""
    key = "\n".join((version("pliant"), cpu, str(n_threads), subject, io_method))
    return cache / "profiles" / f"{sha256(key.encode()).hexdigest()[:24]}.json"


def load_profile(path: Path) -> DeviceProfile | None:
    """The profile at `path`; None when there is none, or it is damaged: then it is to be measured again."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DeviceProfile)
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, ProfileError):
        return None


def save_profile(path: Path, profile: DeviceProfile) -> Path:
    """Write `profile` to `path` in one step, and return `path`.

    Raises ProfileError when the place cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(profile_json(profile))
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ProfileError(
            f"the profile cannot be kept at {path} ({error.strerror}); make room there, or set PLIANT_CACHE."
        ) from error
    return path


def profile_json(profile: DeviceProfile) -> bytes:
    """`profile` as indented JSON, one line feed at its end."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n"
