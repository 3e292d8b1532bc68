"""Bad data that the script replaces by itself, with `nan_to_num`: counted, with its samples where they are known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nantrap import finite
from nantrap.incident.wording import some_of
from nantrap.launch.loaders import Batches

_MOST_INDICES = 1000


class Cleaned:
    """Counts the data that were cleaned. Holds the dataset's indices of the samples that were bad.

    Args:
        batches: what the data loaders gave.
        say: prints a line.
    """

    def __init__(self, batches: Batches, say: Callable[[str], None]) -> None:
        self.count = 0
        """How many tensors were not finite."""
        self._batches = batches
        self._say = say
        self._indices: dict[int, None] = {}
        self._other = False
        """Whether one of them was no whole batch of a data loader."""

    def look(self, tensor: Tensor) -> int:
        """A tensor that is being cleaned. Returns how many samples of it are not finite; a scalar counts as one."""
        if not finite.any_nonfinite([tensor]):
            return 0
        self.count += 1
        if not tensor.dim():
            self._other = True
            self._report("a scalar")
            return 1
        bad = ~torch.isfinite(tensor)
        samples = bad.reshape(len(bad), -1).any(1).nonzero().ravel().tolist()
        indices = self._batches.indices(tensor)
        if not indices or len(indices) != len(tensor):
            self._other = True
            shape = "×".join(map(str, tensor.shape))
            where = f"{_numbered('row', samples)} of a tensor of shape {shape}"
        else:
            where = f"{_numbered('sample', samples)} of the batch"
            own = [indices[sample] for sample in samples]
            if len(self._indices) < _MOST_INDICES:
                self._indices.update(dict.fromkeys(own))
            where += f" ({_numbered('dataset index', own, 'dataset indices')})"
        self._report(where)
        return len(samples)

    def line(self) -> str:
        """The line of the summary; empty if nothing was cleaned."""
        if not self.count:
            return ""
        noun = ("tensor", "tensors") if self._other else ("batch", "batches")
        batches = f"{self.count:,} {noun[self.count != 1]}"
        of = f": {_numbered('dataset index', list(self._indices), 'dataset indices')}" if self._indices else ""
        return f"{batches} cleaned by the script with nan_to_num{of}"

    def _report(self, where: str) -> None:
        if self.count == 1:
            self._say(
                f"the script replaces non-finite values of its data by nan_to_num: {where}; further ones are counted"
            )


def _numbered(noun: str, numbers: list[int], several: str = "") -> str:
    """`sample 4`, `samples 4, 7`."""
    return f"{noun if len(numbers) == 1 else several or noun + 's'} {some_of([str(each) for each in numbers])}"
