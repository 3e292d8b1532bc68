"""The ledger: one row for each tensor that a step may change apart from its update, and what a refused step restores.

    capture   before the first forward pass, and after a good step: what is there now is what `restore` goes back to
    restore   this step never happened: buffers, and parameters that the forward pass wrote, object and contents
    verify    what is not as it was, bit for bit

What is restored depends on who writes a row (`rows`):

*A forward pass* writes buffers: a skipped batch has already changed BatchNorm's statistics. They are copied in each
step, large ones only when their version says so. The first steps compare the bits of those, and one that is written
uncounted (`tensor.data`) is copied from then on. In the usual step only the small buffers are written, and no buffer is
replaced. For it a `CopyPlan` is kept: lists for one `foreach` call, instead of a Python call for each buffer.

*Nobody* writes a parameter without a gradient as a rule. It is copied once, and the sum of versions tells whether any
was written. The first write in a forward pass (a codebook) makes it one of the buffers; the first write outside makes
it the script's.

*The script* writes a teacher between steps, say. No gradient and no update shows that such a write made it non-finite,
so it is judged in the reading of the next step, which is then refused: its loss may have been computed with it. What
the script wrote stays, also in a refused step, as long as it is finite; non-finite values make way for the last finite
ones, after the diagnosis, which needs them. What was written before the first good step, or loaded, is the script's
whatever it is. So is -Inf without NaN: a mask.

*The update* writes every other parameter, and some of them a forward pass writes as well. Copying all parameters in
every step would cost as much as the update, so the first step learns which ones, by their versions and by their bits,
and later steps copy only those. A forward pass that begins to write another parameter later is noticed if the write is
counted, and the next step learns again. Suspects, which the model's code reaches through `tensor.data`, are always
copied: a codebook is reset every thousand steps, and nothing counts it. Where the bits show such a write to a
parameter that the code does not name (`for p in model.parameters(): p.data.clamp_(...)`), all of them are copied from
then on.

In gradient accumulation there are two states to restore: to the beginning of the step, and, when only one micro-batch
is dropped, to the `mark` set after the last good one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter, is_

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.state.rows import (
    CopyPlan,
    Counted,
    Kept,
    LedgerRow,
    Writer,
    buffer_rows,
    contents_of,
    copied,
    copy_rows,
    have_same_shape,
    is_fault_of_script,
    is_mask_of_forward,
    make_plan,
    put_back,
    rows_without_gradient,
    written_uncounted,
)
from nantrap.guard.torch_private import (
    buffers_of,
    copy_all,
    counts_of,
    parameters_of,
    restore_where,
    set_counts,
    version,
    version_of,
)
from nantrap.incident import Finding, Phase
from nantrap.locate import finding

_COMPARED_STEPS = 2
"""Number of steps in which the bits of large buffers are compared, to find those that are written without being
counted."""
_shape_of = attrgetter("shape")


class Ledger:
    """Holds the rows, the mark of the last good micro-batch, and what was learned of who writes which row.

    Args:
        root: the model.
        also: further modules by name, whose buffers are followed like the model's.
        parameters: the guarded parameters by name.
        limit_bytes: no copy of all parameters is made when it would take more than this.
        suspects: parameters that the model's code may write without counting.
    """

    def __init__(
        self,
        root: nn.Module,
        also: Sequence[tuple[str, nn.Module]] = (),
        *,
        parameters: Iterable[tuple[str, nn.Parameter]] = (),
        limit_bytes: int = 0,
        suspects: Iterable[nn.Parameter] = (),
    ) -> None:
        self.rows: list[LedgerRow] = []
        """One for each tensor."""
        self.writes_at_begin: int | None = None
        """How often the parameters had been written when the step began; `None` between steps."""
        self.writes_uncounted = False
        """Whether the forward pass writes a parameter in a way that versions do not tell."""
        self._limit_bytes = limit_bytes
        self._learning = self._copies_parameters = True
        self._copied: list[LedgerRow] = []
        self._unexplained = 0
        self._compared = 0
        self._settled = False
        self._bad: list[LedgerRow] = []
        self._mark: list[Kept] | None = None
        self._lost: list[str] = []
        self._plan: CopyPlan | None = None
        self.refresh(root, also, parameters, suspects)

    def refresh(
        self,
        root: nn.Module,
        also: Sequence[tuple[str, nn.Module]],
        parameters: Iterable[tuple[str, nn.Parameter]],
        suspects: Iterable[nn.Parameter],
    ) -> None:
        """Add a row for what has none yet, and drop those of layers that are no longer there.

        Args:
            root: the model.
            also: further modules by name.
            parameters: the guarded parameters by name.
            suspects: parameters that the model's code may write without counting.
        """
        unexplained = None if self.writes_at_begin is None else self._not_explained()
        modules = [module for each in (root, *(module for _, module in also)) for module in each.modules()]
        held = {id(table) for module in modules for table in (buffers_of(module), parameters_of(module))}
        guarded = {id(parameter): (name, parameter) for name, parameter in parameters}
        self.rows = [
            row
            for row in self.rows
            if (
                row.writer is Writer.SCRIPT or id(row.tensor) in guarded
                if row.holder is None
                else id(row.holder) in held
            )
        ]
        for prefix, module in [("", root), *also]:
            self.rows += buffer_rows(prefix, module, self._places())
        known = {id(row.tensor) for row in self.rows}
        self.rows += [row for row in rows_without_gradient(root) if id(row.tensor) not in known]
        known |= {id(row.tensor) for row in self.rows}
        self.rows += [LedgerRow(n, Writer.UPDATE, p) for each, (n, p) in guarded.items() if each not in known]
        written_by_code = set(map(id, suspects))
        for row in self.rows:
            row.suspect = row.suspect or id(row.tensor) in written_by_code
        self._copied = [row for row in self._copied if row in self.rows]
        self._sort()
        if unexplained is not None:
            self.writes_at_begin = 0
            self.writes_at_begin = self._not_explained() - unexplained  # what is new was not written in this step

    def add(self, prefix: str, module: nn.Module, *, earlier: Mapping[str, Tensor] | None = None) -> bool:
        """Follow the buffers of one more module from now on. Returns whether it has any that were not followed yet.

        Args:
            prefix: its name.
            module: the module.
            earlier: copies of its buffers from the beginning of the step, by name, if the module was called already.
        """
        rows = buffer_rows(prefix, module, self._places(), earlier)
        self.rows += rows
        self._sort()
        return bool(rows)

    def __bool__(self) -> bool:
        return bool(self._buffers or self._still.rows)

    # ---- capture

    def capture(self, *, begins: bool = False) -> None:
        """What is there now is what a refused step goes back to: the script may write anything between steps.

        Args:
            begins: a step begins. It will judge what the script wrote into parameters without a gradient; and what
                the forward pass may write into parameters is copied, too.
        """
        if self._still.rows or self._script.rows:
            self._judge_script_writes_from(begins=begins)
        if begins:
            self.writes_at_begin = sum(map(version_of, self._parameters))
            if self._copies_parameters:
                self._capture_parameters()
        if not self._buffers:
            return
        self._mark = None
        self._lost.clear()
        plan = self._plan
        if (
            plan is not None
            and self._compared > 2 * _COMPARED_STEPS
            and all(map(is_, map(dict.get, plan.holders, plan.keys), plan.tensors))
            and list(map(version_of, plan.counted)) == plan.versions
            and list(map(_shape_of, plan.sources)) == plan.shapes
        ):
            if plan.sources:
                with torch.no_grad():
                    copy_all(plan.copies, plan.sources)
            return
        if self._compared <= 2 * _COMPARED_STEPS:
            self._compared += 1
            for row in written_uncounted(self._buffers):
                row.uncounted = True
        copy_rows(self._written())
        self._plan = make_plan(self._buffers)

    def _capture_parameters(self) -> None:
        """Copy the parameters that the forward pass may write: while learning, all of them."""
        if self._learning:
            self._copied = self._trained
            if not self._fits():
                self._learning = False
                self._keep_copies(row for row in self._trained if row.suspect)
        copy_rows(self._copied)

    def _fits(self) -> bool:
        """Whether a copy of all parameters stays within the budget of memory."""
        return sum(map(finite.size_in_bytes, self._parameters)) <= self._limit_bytes

    def _keep_copies(self, rows: Iterable[LedgerRow]) -> None:
        """From now on these parameters are copied in each step, and no others."""
        self._copied = list(rows)
        for row in set(self._trained).difference(self._copied):
            row.copy = None
        self._copies_parameters = bool(self._copied)

    def mark(self) -> None:
        """A micro-batch was good: `restore_mark` comes back to here, `restore` still to the beginning of the step."""
        if self._buffers:
            self._mark = contents_of(self._written())

    # ---- restore

    def restore(self) -> bool:
        """This step never happened: buffers, and what the forward pass wrote into parameters, as before it.

        Returns:
            Whether every parameter is as it was when the step began.
        """
        self.restore_buffers(keep_mark=True)
        return self.restore_parameters()

    def restore_buffers(self, *, keep_mark: bool = False) -> None:
        """Put every buffer back as it was at the last `capture`, object and contents.

        Args:
            keep_mark: `restore_mark` may still be asked for, by a replay of the micro-batch that failed.
        """
        if not keep_mark:
            self._mark = None
        self._plan = None
        self._follow_forward_writes()
        for row in written_uncounted(self._buffers):
            # the copy may be of an earlier step: better than NaN, and said to be older
            tensor = row.current()
            row.uncounted = tensor is not None and finite.any_nonfinite([tensor])
            if row.uncounted and row.name not in self._lost:
                self._lost.append(row.name)
        rows = self._written()
        put_back([(row, row.tensor, row.copy) for row in rows])
        for row in rows:
            row.version = version(row.tensor)

    def restore_mark(self) -> None:
        """Put every buffer back as it was at the last `mark`, or at the last `capture` if there was none since."""
        mark = self._mark
        self.restore_buffers()
        if mark is not None:
            put_back(mark)
            for row, *_ in mark:
                row.version = -1
            self._mark = mark

    def restore_parameters(self) -> bool:
        """Put back what the forward pass wrote into parameters. Returns whether each is as when the step began."""
        if self.writes_at_begin is None:
            return True
        silent = self.writes_uncounted or any(row.suspect for row in self._trained)
        if not silent and sum(map(version_of, self._parameters)) == self.writes_at_begin:
            return True
        whole = self._not_explained() == 0
        # their versions stay those of the beginning: the writes of the step are counted from there
        put_back([(row, row.tensor, row.copy) for row in self._copied if row.is_written()])
        if not whole:
            self._learning = self._copies_parameters = True
        return whole

    def restore_script_writes(self) -> list[str]:
        """Give what `bad_script_writes` found its last good values, unless it is finite by now. Returns names."""
        names = []
        for row in self._bad:
            tensor, good = row.tensor, row.good
            if (
                tensor is None
                or good is None
                or not have_same_shape(tensor, good)
                or not finite.any_nonfinite([tensor])
            ):
                continue
            put_back([(row, tensor, good)])
            row.good_version = version(tensor)
            names.append(row.name)
        if names:
            self._sort()
        return names

    def restore_for_replay(self) -> Callable[[], None]:
        """How a replay gets the parameters as before the step, and leaves them so.

        They are copied when the first replay begins, as far as the budget of memory allows: a forward pass may write
        them through `tensor.data`, of which nothing tells.
        """
        kept: list[Kept] = []

        def restore() -> None:
            self.restore_parameters()
            if kept:
                put_back(kept)
            elif self._fits():
                kept.extend(
                    contents_of(row for row in self._trained if row.tensor is None or finite.is_plain(row.tensor))
                )

        return restore

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever runs inside, the rows end as they are now, and both saved states stay as they were."""
        put_back_now = self.hold()
        try:
            with self.uncounted():
                yield
        finally:
            put_back_now()

    def hold(self) -> Callable[[], None]:
        """How the rows come back to what they are now, with both saved states."""
        mark, saved = self._mark, [(row, row.version) for row in self._buffers]
        now = contents_of([*self._written(), *(row for row in self._copied if row.is_written())])

        def put_back_now() -> None:
            self._plan = None
            put_back(now)
            for row, before in saved:
                row.version = before
            self._mark = mark

        return put_back_now

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """What runs inside, a replay of the step or its trials, does not count as a write to any row.

        The program may hold a graph over several steps (that of a generator, of one rollout for several updates): it
        can still be run backward if the versions are those which it has noted.
        """
        counts = counts_of(tensor for row in self.rows if (tensor := row.current()) is not None)
        try:
            yield
        finally:
            before = {id(tensor): count for tensor, count in counts}
            for row in self.rows:
                count, now = before.get(id(row.tensor)), version(row.tensor)
                if count is not None and count != now:
                    row.version = count if row.version == now else row.version
                    row.good_version = count if row.good_version == now else row.good_version
            set_counts(counts)
            self._sort()

    def restore_where(self, bad: Tensor) -> None:
        """Before the update, without reading `bad` (1.0 or 0.0 on the device): restore where it is 1."""
        rows = [*self._written(), *(row for row in self._copied if row.is_written())]
        pairs = [(now, row.copy) for row in rows if row.tensor is not None and (now := row.current()) is not None]
        alike = [(now, copy) for now, copy in pairs if copy is not None and have_same_shape(now, copy)]
        if alike:
            restore_where(bad, *zip(*alike, strict=True))

    # ---- verify

    def verify(self) -> list[str]:
        """The buffers that are not as they were at the last `capture`, bit for bit. Reads the device."""
        names = list(self._lost)
        for row in self._buffers:
            tensor = row.current()
            same = tensor is row.tensor and (tensor is None or row.copy is None or finite.same_values(tensor, row.copy))
            if not same and row.name not in names:
                names.append(row.name)
        return names

    # ---- judge

    def largest(self, *, buffers: bool = True) -> Tensor | None:
        """A scalar that is finite only if every buffer written since the copy is: the largest magnitude, or 0 or NaN.

        Stays on the device. `None` if there is nothing to check. Buffers that held infinities from the start are
        left out; one may be a mask, which `names_of_bad` finds out. What the script
        wrote into parameters without a gradient is checked, too.

        Args:
            buffers: whether the buffers were not judged yet in this step.
        """
        script = self._script
        by_script = [row.tensor for row in script.written()] if script.rows and script.any_written() else []
        if not buffers:
            return finite.nan_if_any_bad(by_script) if by_script else None
        plan = self._plan
        if (
            plan is not None
            and not by_script
            and all(map(is_, map(dict.get, plan.holders, plan.keys), plan.tensors))
            and list(map(version_of, plan.counted)) == plan.versions
            and not (self._still.rows and self._still.any_written())
        ):
            return finite.largest_value(plan.judged) if plan.judged else None
        suspects = [*self.suspects(), *by_script]
        return finite.nan_if_any_bad(suspects) if suspects else None

    def suspects(self, *, known_only: bool = False, by_forward: bool = True) -> list[Tensor]:
        """The buffers that were written since the copy and were finite in it.

        Args:
            known_only: without those that were created since the copy. They may be masks (see `names_of_bad`),
                which only a host read can tell.
            by_forward: only a forward pass has run since the copy, so that what is written was written by it.
        """
        if by_forward:
            self._follow_forward_writes()
        return [
            tensor
            for row in self._written()
            if not row.exempt and (tensor := row.current()) is not None and not (known_only and row.is_new(tensor))
        ]

    def names_of_bad(self) -> list[tuple[str, Tensor]]:
        """The buffers that became non-finite since the copy, by name. Reads the device: for after an alarm.

        A mask is exempt from then on.
        """
        bad: list[tuple[str, Tensor]] = []
        for row in self._written():
            tensor = row.current()
            if row.exempt or tensor is None or not finite.any_nonfinite([tensor]):
                continue
            if is_mask_of_forward(row, tensor):
                row.exempt = True
                self._plan = None
            else:
                bad.append((row.name, tensor))
        return bad

    def bad_script_writes(self) -> list[tuple[str, Tensor]]:
        """What the script made non-finite since the last good step, by name. Reads the device: for after an alarm.

        A parameter that is not the script's alone is not judged from then on (see `is_fault_of_script`).
        """
        written = [row for row in self._script.written() if finite.any_nonfinite([row.tensor])]
        self._bad = [row for row in written if is_fault_of_script(row)]
        if len(self._bad) < len(written):
            for row in written:
                row.good = row.good if row in self._bad else None
            self._sort()
        return [(row.name, row.tensor) for row in self._bad if row.tensor is not None]

    def script_writes(self) -> list[Tensor]:
        """The parameters without a gradient that the script, or a hook of the update, has written since they were
        judged."""
        self._release_script_writes()
        return [row.tensor for row in self._script.written() if row.tensor is not None]

    def is_bad_script_write(self, tensor: Tensor) -> bool:
        """Whether `bad_script_writes` named it in this step."""
        return any(row.tensor is tensor for row in self._bad)

    def any_bad(self) -> bool:
        """Whether a buffer, or what the script wrote into a parameter without a gradient, is bad. Reads the device."""
        by_script = self.bad_script_writes() if self._script.rows else []
        return bool(by_script) or bool(self.names_of_bad())

    def findings(self, phase: Phase) -> list[Finding]:
        """The bad buffers with statistics; a parameter that is treated as a buffer is called a parameter."""
        return [
            finding("parameter" if isinstance(tensor, nn.Parameter) else "buffer", name, tensor, phase)
            for name, tensor in self.names_of_bad()
        ]

    def exempt_names(self) -> list[str]:
        """The buffers that may be non-finite: they were so from the start, or are masks."""
        return [row.name for row in self._buffers if row.exempt]

    def exempt_places(self) -> frozenset[tuple[int, str]]:
        """The places (table, key) of those buffers."""
        return frozenset(row.place for row in self._buffers if row.exempt)

    def recapture(self) -> None:
        """The whole state was replaced by an older one, which counts as no write: every copy is made again."""
        copy_rows([row for row in self.rows if row.copy is not None])
        for row in self.rows:
            if row.good is not None and row.tensor is not None:
                row.good, row.good_version = finite.copy_of(row.tensor), version(row.tensor)
        self._sort()
        self.capture()

    # ---- who writes what

    def learn(self) -> None:
        """Before the update of a good step: from the next step on, only parameters that were written are copied."""
        if self.writes_at_begin is None:
            return
        self._unexplained = self._not_explained()
        if not self._learning:
            if self._unexplained:
                self._learning = self._copies_parameters = True
            return
        self._learning = False
        for row in self._copied:
            row.uncounted = False
        uncounted = written_uncounted(self._copied)
        for row in uncounted:
            row.uncounted = True
        self.writes_uncounted = bool(uncounted)
        if not all(row.suspect for row in uncounted):  # a loop over all of them, say, which changes another one later
            for row in self._copied:
                row.suspect = True
        self._keep_copies(row for row in self._copied if row.suspect or row.is_written())

    def forget_update(self) -> None:
        """The update that followed `learn` was undone: its writes, and those that undid it, are no forward pass's."""
        if self.writes_at_begin is not None:
            self.writes_at_begin += self._not_explained() - self._unexplained

    def _not_explained(self) -> int:
        """How many writes since the step began were to parameters that are not copied."""
        assert self.writes_at_begin is not None
        now = sum(map(version_of, self._parameters))
        copied = sum(version(row.tensor) - row.version for row in self._copied)
        return int(now - copied - self.writes_at_begin)

    def take_over(self) -> None:
        """What the script wrote until now, or loaded, is what a bad write will be undone to."""
        self._release_script_writes()
        script = self._script
        if script.rows and script.any_written():
            rows = script.written()
            for row, good in zip(rows, copied([row.tensor for row in rows], [row.good for row in rows]), strict=True):
                row.good, row.good_version = good, version(row.tensor)
            self._sort()

    def _judge_script_writes_from(self, *, begins: bool) -> None:
        """Until a step was good, the script is still preparing its state; from then on its writes are judged."""
        self._bad = []
        self._settled = self._settled or not begins
        if begins and self._settled:
            self._release_script_writes()
        else:
            self.take_over()

    def _release_script_writes(self) -> None:
        """The script wrote a parameter without a gradient, or a hook of the optimizer did: an average, say."""
        if not (self._still.rows and self._still.any_written()):
            return
        for row in self._still.written():
            row.writer, row.holder = Writer.SCRIPT, None
            row.good = row.copy if row.copy is not None and row.copy.is_floating_point() else None
            row.good_version = row.version
            row.copy = None
        self._sort()

    def _follow_forward_writes(self) -> None:
        """A forward pass wrote a parameter without a gradient: from now on it is treated as a buffer."""
        if not (self._still.rows and self._still.any_written()):
            return
        for row in self._still.written():
            row.writer = Writer.FORWARD
            row.exempt = row.copy is not None and finite.any_nonfinite([row.copy])
        self._sort()

    # ---- parts

    def _sort(self) -> None:
        """The rows by who writes them, and the lists that one call of a step takes."""
        self._plan = None
        rows = self.rows
        self._buffers = [row for row in rows if row.writer is Writer.FORWARD]
        still = [row for row in rows if row.writer is Writer.NOBODY]
        self._still = Counted(still, [row.version for row in still])
        script = [row for row in rows if row.good is not None]
        self._script = Counted(script, [row.good_version for row in script])
        self._trained = [row for row in rows if row.writer in (Writer.UPDATE, Writer.SCRIPT)]
        self._parameters = [row.tensor for row in self._trained if row.tensor is not None]

    def _written(self) -> list[LedgerRow]:
        """The buffers that were written or replaced since the copy."""
        return [row for row in self._buffers if row.is_written()]

    def _places(self) -> set[tuple[int, str]]:
        """Where the tensors are held that have a row."""
        return {row.place for row in self.rows if row.holder is not None}
