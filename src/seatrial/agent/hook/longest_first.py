"""The longest examples first, for `--fit`: the first steps of a trial then need the memory that any step may."""

from itertools import islice
from time import perf_counter
from typing import Any, Iterator, Optional

#: Batches looked ahead, examples at most, and seconds at most: a data set may be slow to read.
_BATCHES, _MOST_EXAMPLES, _MOST_S = 16, 1024, 3.0


class LongestFirst:
    """A sampler that gives the longest of the next examples first, and is in all else the one that it stands for.

    Args:
        sampler: of indices.
        dataset: read by index.
        batch: examples in a batch.
    """

    def __init__(self, sampler: Any, dataset: Any, batch: int) -> None:
        self._sampler, self._dataset = sampler, dataset
        self._ahead = min(_BATCHES * batch, max(_MOST_EXAMPLES, batch))

    def __iter__(self) -> Iterator[Any]:
        indices = iter(self._sampler)
        ahead = list(islice(indices, self._ahead))
        until_s = perf_counter() + _MOST_S
        lengths = {}
        for place, index in enumerate(ahead):
            if perf_counter() > until_s:
                break
            lengths[place] = length(self._dataset[index]) or 0
        for place in sorted(range(len(ahead)), key=lambda place: -lengths.get(place, 0)):
            yield ahead[place]
        for index in indices:
            yield index

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def length(example: Any) -> Optional[int]:
    """Of an example's longest sequence; None where it has none, as a picture."""
    parts = example.values() if isinstance(example, dict) else example if isinstance(example, tuple) else [example]
    found = []
    for part in parts:
        shape = getattr(part, "shape", None)
        if shape is not None:
            found += [int(shape[0])] if len(shape) == 1 else []
        elif isinstance(part, (list, str)):
            found.append(len(part))
    return max(found) if found else None
