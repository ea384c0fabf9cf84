"""Settings from the environment: folders, the number of threads, the environment of child processes.

No other module reads the environment. Values are read at each call and not cached, so a changed affinity or
variable applies to whatever is opened next.
"""

import os
from numbers import Integral
from pathlib import Path

from pliant.errors import InputError
from pliant.system import allowed_cpus, cpu_quota, physical_cores

_MOST_THREADS = 256


def cache_folder(requested: str | os.PathLike[str] | None = None) -> Path:
    """Pliant's cache folder: `requested`, or else $PLIANT_CACHE, $XDG_CACHE_HOME/pliant, or ~/.cache/pliant.

    Every `cache` argument means this folder. Below it lie `kernels` (compiled objects), `costs` (measured
    forms), `profiles` (measured devices), `stores` (packed models) and `identities` (hashes of files).
    """
    given = requested or os.environ.get("PLIANT_CACHE")
    return Path(given) if given else _user_folder("XDG_CACHE_HOME", ".cache")


def config_folder() -> Path:
    """The folder of the user's own files (the cluster key): $XDG_CONFIG_HOME/pliant, or ~/.config/pliant."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def user_path(text: str) -> Path:
    """Return `text` as a path with a leading `~` expanded to the home folder; keeps an unknown `~user`."""
    try:
        return Path(os.path.expanduser(text))
    except ValueError:  # a null byte or a lone surrogate: not a user name
        return Path(text)


def secret_variable(name: str) -> str | None:
    """The value of the environment variable that an operator names for a secret; None if it is not set."""
    return os.environ.get(name)


def credentials_folder() -> Path | None:
    """The folder of this service's systemd credentials ($CREDENTIALS_DIRECTORY), or None."""
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    return Path(given) if given else None


def allows_amx() -> bool:
    """Whether AMX may be used where the CPU has it: if $PLIANT_AMX is 1 (docs/amx.md says why)."""
    return os.environ.get("PLIANT_AMX") == "1"


def child_environment(**changes: str) -> dict[str, str]:
    """This process's environment with `changes`, for a child process."""
    return {**os.environ, **changes}


def thread_count(requested: int | None = None) -> int:
    """The number of compute threads: `requested`, or as many as can run at once without being throttled.

    The default is one thread for each physical core that the CPU affinity allows, at most the whole cores of
    the CPU quotas of the process's control groups. A quota of 1.5 cores gives one thread: two threads would
    use up the quota before the end of each period (100 ms) and then stall, which would miss any latency
    target. The remaining half core serves reads and tokenisation.

    Raises InputError if `requested` is not a whole number, is below 1, or is above both 256 and the number of
    CPUs.
    """
    if requested is not None:
        if not isinstance(requested, Integral):
            raise InputError(f"{requested!r} is not a number of threads; give a whole number, such as 2.")
        if requested < 1:
            raise InputError(f"{requested} threads are too few; give at least 1.")
        if requested > (most := max(_MOST_THREADS, os.cpu_count() or 1)):
            raise InputError(f"{requested} threads are too many; give at most {most}.")
        return requested
    cores, quota = physical_cores(allowed_cpus()), cpu_quota()
    return cores if quota is None else max(1, min(cores, int(quota)))


def _user_folder(variable: str, default: str) -> Path:
    """XDG Base Directory Specification: a variable that is not an absolute path is ignored."""
    base = Path(os.environ.get(variable) or "")
    return (base if base.is_absolute() else Path.home() / default) / "pliant"
