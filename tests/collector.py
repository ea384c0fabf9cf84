"""Keep the garbage collector from visiting the tests and modules that pytest has collected.

They stay to the end, and to visit them took each full collection 0.35 s. A node makes one whenever it loads
or unloads a model.
"""

import gc
from types import SimpleNamespace


def skip_collected_tests() -> None:
    """From now on collections leave out what exists, also those of a node, which thaws what is frozen."""
    from pliant.run import unused_memory

    freeze_everything()
    own = {"get_freeze_count": lambda: 0, "unfreeze": lambda: None, "collect": gc.collect}
    vars(unused_memory)["gc"] = SimpleNamespace(**own)


def freeze_everything() -> None:
    """Have collections leave out all that exists now but garbage."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
