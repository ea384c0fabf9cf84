"""Store device profiles as JSON, one file per device and model shape."""

from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from uuid import uuid4

import msgspec

from pliant.errors import ProfileError
from pliant.ir.device import DeviceProfile, interpolate_profiles

VERSION = 1
"""The version of the file format. It increases when a number in the files changes its meaning."""


class _Header(msgspec.Struct):
    version: int = VERSION  # files without a version have format 1


def profile_path(
    cache: Path, cpu: str, n_threads: int, subject: str, io_method: str, frequency_Hz: float | None = None
) -> Path:
    """Return the profile's path for this device and model shape (`profile_key`); it depends on pliant's
    version.

    A profile at another `frequency_Hz`, rounded to 50 MHz, has its own file.
    """
    key = "\n".join((version("pliant"), cpu, str(n_threads), subject, io_method))
    name = sha256(key.encode()).hexdigest()[:24]
    if frequency_Hz is not None:
        name += f"-{50 * round(frequency_Hz / 50e6)}MHz"
    return cache / "profiles" / f"{name}.json"


def interpolate_profile(path: Path, frequency_Hz: float) -> DeviceProfile | None:
    """Interpolate T_comp at `frequency_Hz`, whose own profile path is `path`, from profiles at other rates.

    None if `frequency_Hz` is not between two of them.
    """
    name = path.stem.rpartition("-")[0]
    kept = [load_profile(other) for other in sorted(path.parent.glob(f"{name}-*MHz.json"))]
    return interpolate_profiles([profile for profile in kept if profile is not None], frequency_Hz)


def load_profile(path: Path) -> DeviceProfile | None:
    """Return the profile at `path`; None if it is missing or unreadable, and must be measured again."""
    try:
        return _read(path)
    except (OSError, ProfileError):
        return None


def unreadable_reason(path: Path) -> str | None:
    """Return why `load_profile` rejects the file at `path`; None if it does not, or if there is no file."""
    try:
        _read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    except ProfileError as error:
        return str(error)
    return None


def _read(path: Path) -> DeviceProfile:
    data = path.read_bytes()
    try:
        version = msgspec.json.decode(data, type=_Header).version
        if version != VERSION:
            raise ProfileError(f"it has format {version}, and this version of pliant reads {VERSION}")
        return msgspec.json.decode(data, type=DeviceProfile)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise ProfileError(f"it is damaged ({error})") from error


def save_profile(path: Path, profile: DeviceProfile) -> Path:
    """Write `profile` to `path` atomically, and return `path`.

    Raises ProfileError if the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")  # threads and containers share process numbers
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
    """Return `profile` and its format version as indented JSON with a final line feed."""
    content = {"version": VERSION, **msgspec.to_builtins(profile)}
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"
