"""The compiled images of a session: a limited number, within a memory limit."""

from collections import OrderedDict
from typing import final

from pliant.compiler.executable.image import Image
from pliant.errors import BudgetError
from pliant.ir.symbolic import plain_value
from pliant.run.array_sessions.evictions import Evictions
from pliant.run.graph.graph_runner import GRAPH, GraphRunner
from pliant.run.graph.lowering import LoweredGraph
from pliant.run.graph.model_binder import BindingKey
from pliant.run.graph.symbolic_forms import SizedStage
from pliant.run.weight_sizes import combined


@final
class KeptImages:
    """Images by the binding of their feeds, the least recently used first. The owner serialises calls.

    `most` of them are kept, and as many more as batches need. The first time that an evicted image is
    compiled again, a UserWarning reports it.
    """

    def __init__(self, most: int, memory_bytes: int | None, source: str) -> None:
        self._most, self._memory_bytes, self._source = most, memory_bytes, source
        self._images: OrderedDict[BindingKey, GraphRunner] = OrderedDict()
        self._evictions = Evictions(most, memory_bytes)

    def __len__(self) -> int:
        return len(self._images)

    def __contains__(self, key: BindingKey) -> bool:
        return key in self._images

    @property
    def images(self) -> list[GraphRunner]:
        """A copy, since another thread may compile."""
        return list(self._images.values())

    def get(self, key: BindingKey) -> GraphRunner | None:
        """The image for `key`, which counts as used now; None if it is not kept."""
        image = self._images.get(key)
        if image is not None:
            self._images.move_to_end(key)
        return image

    def add(self, key: BindingKey, image: GraphRunner, n_more: int) -> GraphRunner | None:
        """Keep a new image, `n_more` of them beyond the usual number.

        Returns the image evicted for it, if any; first one that can be bound again without compiling.
        """
        self._images[key] = image
        evicted = self._evicted(key) if len(self._images) > self._most + n_more else None
        self._evictions.warn(key, self._source)
        return evicted

    def make_room(self, lowered: LoweredGraph, is_batch: bool) -> bool:
        """Evict the least recently used images until a new one, which fits alone, fits beside the rest.

        Returns whether any was evicted. Nothing is evicted for a batch, whose requests can also run alone:
        raises BudgetError if its image, inputs and outputs do not fit beside all kept images.
        """
        most, n_kept = self._memory_bytes, len(self._images)
        if most is None:
            return False
        if is_batch and (wanted := self._bytes_with(lowered) + _array_bytes(lowered.image)) > most:
            raise BudgetError(
                f"{self._source} needs {wanted} bytes of memory for this batch beside the images that it "
                f"keeps, but has {most}. Give at least {wanted} bytes, or run its requests one by one."
            )
        while self._images and self._bytes_with(lowered) > most:
            key, _ = self._images.popitem(last=False)
            self._evictions.add(key)
        return len(self._images) < n_kept

    def clear(self) -> None:
        """Keep no image any more."""
        self._images.clear()

    def _evicted(self, newest: BindingKey) -> GraphRunner:
        bound = (key for key, image in self._images.items() if key != newest and is_bound(image))
        key = next(bound, None)
        if key is None:
            key = next(iter(self._images))
            self._evictions.add(key)
        return self._images.pop(key)

    def _bytes_with(self, lowered: LoweredGraph) -> int:
        sizes = combined([lowered.sizes, *(kept.sizes for kept in self._images.values())])
        arenas = [lowered.image.arena_bytes, *(kept.arena_bytes for kept in self._images.values())]
        return sizes.n_bytes + max(arenas)


def is_bound(image: GraphRunner) -> bool:
    """Whether an image is one size of a form that serves other sizes too."""
    return isinstance(image.stages.get(GRAPH), SizedStage)


def _array_bytes(image: Image) -> int:
    """Bytes of its inputs and outputs."""
    return sum(plain_value(t.n_bytes) for t in (*image.inputs.values(), *image.outputs.values()))
