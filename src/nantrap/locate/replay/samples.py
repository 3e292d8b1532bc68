"""Which samples of the batch alone make the step fail: bisection by running the step on parts of the batch."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from nantrap.finite import any_nonfinite
from nantrap.locate.batch import batch_size, select, tensors_of
from nantrap.locate.budget import Budget
from nantrap.locate.failure import Failure

_INDEX_NAMES = frozenset(
    {"index", "idx", "indices", "sample_index", "sample_idx", "dataset_index", "sample_id", "uid"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Samples:
    """The guilty samples, or why they could not be found.

    Attributes:
        guilty: positions in the batch.
        size: how many samples the batch holds.
        note: why they could not be found, or what is uncertain.
        rest_is_finite: the step is finite without them.
        runs: how often the step was run.
        dataset_indices: the samples' indices in the dataset, where the batch carries them.
    """

    guilty: tuple[int, ...] = ()
    size: int | None = None
    note: str = ""
    rest_is_finite: bool | None = None
    runs: int = 0
    dataset_indices: tuple[int, ...] = ()


class _Enough(Exception):
    """The budget is used up."""


class _Everyone(Exception):
    """Samples from all over the batch were run alone, and each of them fails: no single one is the reason."""


_FIRST_FOUND = 8
"""So many guilty samples in a row, and no part that is finite: then samples from the rest of the batch are tried."""


def find_samples(
    failed: Failure,
    *,
    budget: Budget,
    max_runs: int = 64,
    seen: Callable[[int], tuple[Set[int], Set[int]]] = lambda size: (frozenset(), frozenset()),
) -> Samples:
    """Bisect the batch. Stops when the budget is spent, or after `max_runs`, and returns what it knows by then.

    Args:
        failed: the failed step.
        budget: how long it may take.
        max_runs: how often the step may be run.
        seen: the rows of the whole batch, of this size, in which the guilty operation gave bad values, and those in
            which any operation did. Where some of the samples that were found are among them, the others are bad only
            in a part of the batch, which is rounded differently.
    """
    if not failed.repeatable:
        return Samples(note="the guilty sample cannot be found in the two-line form; use guard.attempt")
    if not any(True for _ in tensors_of(failed.batch)):
        return Samples(note="no sample was searched: which tensors are the batch is not known")
    size = batch_size(failed.batch)
    if size is None:
        shown = any(True for _ in tensors_of(failed.batch))
        why = (
            "the batch holds no tensor with a sample dimension" if shown else "the code does not show what the batch is"
        )
        return Samples(note=f"the guilty sample was not searched: {why}")
    if size == 1:
        indices = dataset_indices(failed.batch, (0,), 1)
        return Samples((0,), 1, note="the batch holds a single sample", dataset_indices=indices)
    search = _Search(failed, size, budget=budget, max_runs=max_runs)
    rows, rows_of_any = seen(size)
    everything = list(range(size))
    note = ""
    try:
        if not search.fails(everything):
            if failed.crew is not None and search.refused:
                return Samples(size=size, note=_not_run(search), runs=search.runs)
            return Samples(
                size=size,
                note="the batch does not fail again when it is rebuilt from its samples",
                runs=search.runs,
            )
        guilty = (
            search.guess(sorted(rows))
            or search.descend(everything)
            or search.leave_out(everything)
            or search.one_by_one(everything)
        )
    except _Enough:
        guilty = search.found if search.innocent else []  # every part fails: what was found first is no more to blame
        note = "the search for the samples was cut short by its budget"
    except _Everyone:
        guilty = []
        note = f"each of the {search.alone} samples that were run alone fails, so no single one is the reason"
    guilty = search.also_in_the_batch(guilty)
    guilty = [each for each in guilty if each in rows_of_any] or guilty
    if not guilty:
        return Samples(size=size, note=note or _nobody_alone(failed, search), runs=search.runs)
    rest = [i for i in everything if i not in set(guilty)]
    clean: bool | None = None
    if rest:
        verdict = search.try_fails(rest)
        clean = None if verdict is None else not verdict
    others = [i for i in everything if i not in rows]
    if clean is False and set(guilty) < rows and search.try_fails(others) is False:
        guilty, clean, note = list(rows), True, ""  # rounded differently in parts, or too many to be run alone
    chosen = tuple(sorted(guilty))
    return Samples(chosen, size, note, clean, search.runs, dataset_indices(failed.batch, chosen, size))


def _nobody_alone(failed: Failure, search: _Search) -> str:
    """Why no sample is guilty, as far as it was tried."""
    assert failed.forward is not None
    if failed.crew is not None:
        return _not_run(search) if search.refused else "no part of the batch that was tried fails alone"
    with failed.rewound():
        before = torch.get_rng_state()
        with contextlib.suppress(Exception):  # it raises as the step did; what it drew until then is counted
            failed.forward(failed.batch)
        draws = not torch.equal(before, torch.get_rng_state())
    if draws:
        return "the step draws random numbers, and a part of the batch draws others: the sample cannot be found"
    if search.alone == search.size:
        return "each sample was run alone and none of them fails: it takes several of them together"
    if search.refused:
        return "some parts of the batch could not be run alone, so the sample cannot be found"
    return "neither half of the batch fails alone; single samples were not tried"


def _not_run(search: _Search) -> str:
    """What happened when all ranks tried to run a part of this rank's batch."""
    return f"the sample was not searched: {search.reason}"


def dataset_indices(batch: Any, samples: Sequence[int], size: int | None) -> tuple[int, ...]:
    """The samples' indices in the dataset, if the batch carries them under a name like `index` or `idx`."""
    for path, tensor in tensors_of(batch):
        name = re.sub(r"\[\d+\]$", "", path).rpartition(".")[2].lower()
        whole = not tensor.is_floating_point() and tensor.dtype != torch.bool and tensor.dim() == 1
        if name in _INDEX_NAMES and whole and tensor.shape[0] == size:
            return tuple(int(tensor[i]) for i in samples)
    return ()


def fails(failed: Failure, samples: Sequence[int], size: int) -> bool:
    """Whether the step is non-finite on these samples only. Raises what the user's function raises."""
    assert failed.forward is not None
    part = select(failed.batch, samples, size)
    if failed.crew is not None:
        return not failed.crew.step(("nothing",), None, batch=(part,)).finite
    with failed.rewound():
        loss = failed.forward(part)
        if any_nonfinite([loss]):
            return True
        if not loss.requires_grad:
            return False
        failed.backward(loss * failed.loss_factor * _share(failed, len(samples), size))
        if any_nonfinite([p.grad for p in failed.parameters.values()]):
            return True
        return any_nonfinite([tensor for _, tensor in failed.bad_state()])


def _share(failed: Failure, part: int, size: int) -> float:
    """What the loss of a part is multiplied by if a scaler is at its limit: the mean over fewer samples gives each of
    them a larger gradient than it has in the batch."""
    return part / size if failed.loss_factor > _SCALED else 1.0


_SCALED = 8.0
"""A factor of the loss above this is the scale of a scaler; accumulation divides by the number of micro-batches."""


class _Search:
    def __init__(self, failed: Failure, size: int, *, budget: Budget, max_runs: int) -> None:
        self.failed = failed
        self.size = size
        self.budget = budget
        self.max_runs = max_runs
        self.runs = 0
        self.found: list[int] = []
        self.smallest: list[int] = []
        self.refused = False
        self.reason = ""
        self.alone = 0
        self.innocent = False
        self.known: dict[tuple[int, ...], bool | None] = {}

    def try_fails(self, samples: Sequence[int]) -> bool | None:
        """Like `fails`; `None` where the function does not take such a part (BatchNorm and a single sample)."""
        part = tuple(samples)
        if part not in self.known:
            self.runs += 1
            try:
                self.known[part] = fails(self.failed, samples, self.size)
            except Exception as error:
                self.refused = True
                self.reason = self.reason or str(error)
                self.known[part] = None
        return self.known[part]

    def fails(self, samples: Sequence[int]) -> bool:
        if self.runs >= self.max_runs or self.budget.spent:
            raise _Enough
        failing = bool(self.try_fails(samples))
        self.innocent |= not failing
        return failing

    def guess(self, rows: list[int]) -> list[int]:
        """The guilty ones among the rows that the failed operation showed, if these fail and the rest does not."""
        rest = [i for i in range(self.size) if i not in set(rows)]
        return self.descend(rows) if rows and rest and self.fails(rows) and not self.fails(rest) else []

    def descend(self, samples: list[int]) -> list[int]:
        """The guilty ones among samples that fail together; empty if they fail only together."""
        if len(samples) == 1:
            self.found.append(samples[0])
            if len(self.found) == _FIRST_FOUND and not self.innocent:
                self._look_elsewhere()
            return samples
        middle = len(samples) // 2
        guilty: list[int] = []
        for part in (samples[:middle], samples[middle:]):
            if self.fails(part):
                guilty += self.descend(part)
        if not guilty:
            self.smallest = samples
        return guilty

    def also_in_the_batch(self, guilty: list[int]) -> list[int]:
        """The samples that fail in a batch of the full size too, with the other guilty ones replaced by a good sample.

        A sample that runs alone is rounded differently, and a mean gives it another weight.
        """
        good = next((i for i in range(self.size) if i not in set(guilty)), None)
        if good is None or len(guilty) < 2 or self.failed.crew is not None:
            return guilty
        found = []
        for sample in guilty:
            others = set(guilty) - {sample}
            if self.runs >= 2 * self.max_runs or self.budget.spent:
                return guilty
            if self.try_fails([good if i in others else i for i in range(self.size)]) is not False:
                found.append(sample)
        return found

    def _look_elsewhere(self) -> None:
        """Every part so far fails: run as many samples again, spread over the rest. Ends the search if each fails."""
        rest = [i for i in range(self.size) if i not in set(self.found)]
        spread = rest[len(rest) // _FIRST_FOUND - 1 :: max(len(rest) // _FIRST_FOUND, 1)][:_FIRST_FOUND]
        if len(rest) >= 2 * _FIRST_FOUND and all(self.fails([sample]) for sample in spread):
            self.alone = len(self.found) + len(spread)
            raise _Everyone

    def one_by_one(self, everything: list[int]) -> list[int]:
        """Where no half fails: the samples that fail alone."""
        if self.refused or len(everything) > self.max_runs - self.runs:
            return []
        guilty = []
        for sample in everything:
            if self.fails([sample]):
                guilty.append(sample)
            self.alone += not self.refused
        return guilty

    def leave_out(self, everything: list[int]) -> list[int]:
        """Where single samples cannot be run (BatchNorm): the one without which the batch is finite."""
        for sample in self.smallest if self.refused and len(self.smallest) <= 8 else []:
            if self.try_fails([i for i in everything if i != sample]) is False:
                return [sample]
        return []
