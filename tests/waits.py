"""Measure devices without asking how long the threads of this process have waited for a core.

A profile of a small model asks 1,800 times, before and after each sample. With the threads of torch and of
nodes, and a reader that holds Python's lock, that takes 4 s of 5; `pliant` itself has few threads.
"""


def ignore_waits() -> None:
    """From now on profiles are measured as on a quiet machine, unless a test says otherwise."""
    from pliant.profile.measure_device import measure_device

    measure_device.__kwdefaults__["waited"] = dict
