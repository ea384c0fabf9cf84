"""Compute threads of a Ray actor: the CPUs that Ray counts for it, not those of the machine."""

import ray

from pliant.settings import thread_count


def assigned_threads(asked: int | None) -> int:
    """`asked`, or the whole CPUs that this actor was assigned, at least 1; outside actors as `thread_count`.

    Ray counts CPUs, but does not keep an actor from using others: actors with a thread for each core of the
    machine would take turns on all of them.
    """
    if asked is not None or not ray.is_initialized() or ray.get_runtime_context().get_actor_id() is None:
        return thread_count(asked)
    assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1.0)
    return thread_count(max(1, int(assigned)))
