"""Compute threads of a Ray actor: the CPUs that Ray assigned to it, not all CPUs of the machine."""

import ray

from pliant.settings import thread_count


def assigned_threads(requested: int | None) -> int:
    """Return `requested`, or the whole CPUs of this actor (at least 1); outside actors as `thread_count`.

    Ray counts CPUs but does not stop an actor from using more: actors with one thread for each core of the
    machine would compete for all cores.
    """
    if requested is not None or not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return thread_count(requested)
    assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1.0)
    return thread_count(max(1, int(assigned)))
