"""`pliant eval --on ray`: answer the examples on actors of Ray Data, one after the other in each actor."""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from math import ceil
from typing import Any, final

import numpy as np

from pliant.api.open_elastic import BaselineName
from pliant.cli.eval_rows import EvalExample, EvalRow, make_asker
from pliant.cli.shared.verb_options import SessionArguments, resolve_for
from pliant.errors import InputError
from pliant.ray.assigned_threads import assigned_threads

try:
    import ray
    import ray.data
    from ray.exceptions import RayError
except ImportError as error:
    raise InputError(f"--on ray needs {error.name}: pip install 'pliant[ray]'.") from error

_BATCH = 32
"""Number of examples that are repeated when an actor is lost."""


@final
class Evaluator:
    """An actor: it opens the model once, and answers examples one after the other, as on one machine."""

    def __init__(self, session: SessionArguments, baseline: BaselineName | None, is_text: bool) -> None:
        model = resolve_for(session.source, "eval")
        session = replace(session, threads=assigned_threads(session.threads))
        opened = session.open(model, lambda what, done, total: None, baseline, takes=("latency",))
        self._ask = make_asker(model, opened, is_text)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        rows = [pickle.dumps(self._ask(pickle.loads(item))) for item in batch["item"]]
        return {"id": batch["id"], "row": np.array(rows, object)}


def rows_on_ray(
    session: SessionArguments,
    baseline: BaselineName | None,
    items: Sequence[EvalExample],
    n_actors: int | None,
    on_row: Callable[[int, int], None],
) -> list[EvalRow]:
    """Return the answers to `items` in their order, each once, from `n_actors` actors (None: one a CPU).

    An actor has as many CPUs as `session` has threads, by default 1. A lost actor is replaced and its
    examples are answered again. Uses the running Ray (`ray start`, RAY_ADDRESS), otherwise a local one.
    Raises InputError with the error of a failed actor.
    """
    n_threads = session.threads or 1
    with _connected():
        n_actors = n_actors or max(1, int(ray.cluster_resources().get("CPU", 1.0)) // n_threads)
        is_text = isinstance(items[0], tuple)
        table = [{"id": i, "item": pickle.dumps(item)} for i, item in enumerate(items)]
        data = ray.data.from_items(table, override_num_blocks=ceil(len(table) / _BATCH)).map_batches(
            Evaluator,
            fn_constructor_args=(replace(session, threads=n_threads), baseline, is_text),
            batch_size=_BATCH,
            compute=ray.data.ActorPoolStrategy(size=n_actors),
            num_cpus=n_threads,
        )
        found: dict[int, EvalRow] = {}
        try:
            for one in data.iter_rows():
                if one["id"] in found:
                    raise InputError(f"Ray gave example {one['id']} twice: check its logs, and run again.")
                found[one["id"]] = pickle.loads(one["row"])
                on_row(len(found), len(items))
        except RayError as error:
            raise InputError(f"an actor failed: {_cause(error)}") from error
    if len(found) != len(items):
        raise InputError(f"Ray gave {len(found)} of {len(items)} examples: check its logs, and run again.")
    return [found[i] for i in range(len(items))]


@contextmanager
def _connected() -> Iterator[None]:
    """Connect to the running Ray, or start one for this context; its output is redirected to stderr."""
    with redirect_stdout(sys.stderr):
        is_own = not ray.is_initialized()
        if is_own:
            ray.init(include_dashboard=False, log_to_driver=False)
        context = ray.data.DataContext.get_current()
        kept, context.enable_progress_bars = context.enable_progress_bars, False
        try:
            yield
        finally:
            context.enable_progress_bars = kept
            if is_own:
                ray.shutdown()


def _cause(error: BaseException) -> str:
    """Return the last error of a chain, without Ray's traceback."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
