"""Audit checkpoints: find them, read each file once, judge, and name the last good one."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.dcp import read_items
from nantrap.checkpoints.audit.facts import default_role, facts_of, role_of_path
from nantrap.checkpoints.audit.families import family_of, hints_of, in_order_of_time, newest_healthy
from nantrap.checkpoints.audit.files import ByteSource, filesystem_of
from nantrap.checkpoints.audit.judge import SQUARES, judge_dtypes, judge_numbers, judge_plain_numbers, judge_tensor
from nantrap.checkpoints.audit.layouts import Checkpoint, Unit, find_checkpoints, misplaced
from nantrap.checkpoints.audit.readers import read_contents
from nantrap.checkpoints.audit.readers.nantrap_file import check_hash, check_seal
from nantrap.checkpoints.audit.scan import OnBytes, scan
from nantrap.checkpoints.audit.trust import problems_of_imports
from nantrap.checkpoints.audit.verdict import AuditReport, CheckpointAudit, CheckpointProblem, checkpoint_problem
from nantrap.errors import UsageError
from nantrap.incident.wording import escaped
from nantrap.problems.progress import ReadingProgress as Progress

if TYPE_CHECKING:
    from nantrap.engines import Engine


MANY = 8
"""A family of more checkpoints than this, larger together than `LARGE_BYTES`, is bisected rather than read whole."""
LARGE_BYTES = 16 << 30
MOST_PROBLEMS = 5000
"""The most problems of one file that are listed: a forged file could have any number."""

PathLike = str | os.PathLike[str]


class _FileAudit(NamedTuple):
    """The result of one file; sent between ranks."""

    name: str
    format: str
    tensors: int = 0
    problems: tuple[CheckpointProblem, ...] = ()
    facts: Mapping[str, Any] = {}
    dtypes: Mapping[str, int] = {}
    names: frozenset[str] = frozenset()
    holds_model: bool = False
    holds_optimizer: bool = False


def audit(
    paths: PathLike | Iterable[PathLike],
    *,
    verify: bool = True,
    read_all: bool | None = None,
    workers: int | None = None,
    ranks: AuditTeam | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> AuditReport:
    """Check checkpoints for NaN, Inf, absurd values, damage and unsafe pickles. Nothing pickled is ever run.

    Args:
        paths: Files, folders, globs or fsspec URLs, one or several.
        verify: Check the CRC-32 of every record in zip files, and the hashes of a store's manifest.
        read_all: Read every checkpoint (`True`), find the last good one by bisection (`False`), or decide by the
            number and the size of the files (`None`).
        workers: Threads that read a file; by default one per core, at most four.
        ranks: Share the files with other processes that make the same call.
        engine: Read the files elsewhere, each as a separate task; one after the other in this process by default.
        progress: Called with the number of bytes in total and the number that was read.

    Example:
        >>> import tempfile, torch, nantrap
        >>> path = tempfile.mkdtemp() + "/step_100.pt"
        >>> torch.save({"model": {"weight": torch.tensor([1.0, float("nan")])}}, path)
        >>> report = nantrap.audit(path)
        >>> report.healthy, report.problems[0].code, report.problems[0].tensor
        (False, 'NT901', 'model.weight')
    """
    given: list[Any] = [paths]
    if isinstance(paths, Iterable) and not isinstance(paths, (str, bytes, os.PathLike)):
        given = list(paths)
    wrong = [path for path in given if not isinstance(path, (str, os.PathLike))]
    if wrong:
        raise UsageError(f"a path is expected, got {type(wrong[0]).__name__}; give a file, a folder, a glob or a URL")
    if not given:
        raise UsageError("no path was given; give a file, a folder, a glob or a URL")
    team, listener = ranks or AuditTeam(), progress or Progress()
    if engine is not None and team.size > 1:
        raise UsageError("several ranks share the files already; leave out --engine, or start it without torchrun")
    checkpoints = _found_by_rank_0([os.fspath(path) for path in given], team)
    reader = _Reader(verify=verify, workers=workers, team=team, progress=listener, engine=engine)
    families: dict[str, list[Checkpoint]] = {}
    for checkpoint in checkpoints:
        families.setdefault(family_of(checkpoint.path), []).append(checkpoint)
    at_once: list[Checkpoint] = []
    for family in families.values():
        if _should_bisect(family, read_all=read_all):
            ordered = in_order_of_time(family)
            newest_healthy(ordered, lambda checkpoint: reader.read([checkpoint])[0].healthy)
        else:
            at_once += family
    reader.read(at_once)
    seen = in_order_of_time([c for c in checkpoints if c.path in reader.audits])
    audits = tuple(reader.audits[checkpoint.path] for checkpoint in seen)
    return AuditReport(
        checkpoints=audits,
        hints=tuple(hints_of(audits)),
        last_good=_last_good(seen, reader.audits),
        not_read=tuple(c.path for c in checkpoints if c.path not in reader.audits),
    )


def _found_by_rank_0(paths: list[str], team: AuditTeam) -> list[Checkpoint]:
    """All ranks work on the list of rank 0, and fail together if it cannot be made."""
    found: list[Checkpoint] | UsageError = []
    if team.rank == 0:
        try:
            found = find_checkpoints(paths)
        except UsageError as error:
            found = error
    found = team.agree(found)
    if isinstance(found, UsageError):
        raise found
    return found


def _should_bisect(family: Sequence[Checkpoint], *, read_all: bool | None) -> bool:
    if read_all is not None:
        return not read_all and len(family) > 1
    return len(family) > MANY and sum(checkpoint.size for checkpoint in family) > LARGE_BYTES


def _last_good(seen: Sequence[Checkpoint], audits: dict[str, CheckpointAudit]) -> str | None:
    """The newest healthy one with a model; across families by the step inside the files where all of them have it.

    Weights alone, such as a `model.pt` for others to use, are named only where no healthy one has an optimizer as well.
    """
    healthy = [c for c in seen if audits[c.path].healthy and audits[c.path].holds_model]
    healthy = [c for c in healthy if audits[c.path].holds_optimizer] or healthy
    if not healthy:
        return None
    steps = [audits[checkpoint.path].facts.get("step") for checkpoint in healthy]
    if len({family_of(c.path) for c in healthy}) > 1 and all(isinstance(step, int) for step in steps):
        healthy.sort(key=lambda c: (audits[c.path].facts["step"], c.modified))
    return healthy[-1].path


class _Reader:
    """Reads checkpoints, together with the other ranks, and keeps what it found by path."""

    def __init__(
        self, *, verify: bool, workers: int | None, team: AuditTeam, progress: Progress, engine: Engine | None
    ) -> None:
        self.verify = verify
        self.workers = workers
        self.team = team
        self.progress = progress
        self.engine = engine
        self.audits: dict[str, CheckpointAudit] = {}

    def read(self, checkpoints: Sequence[Checkpoint]) -> list[CheckpointAudit]:
        """Every rank must call this with the same checkpoints."""
        jobs = [(position, unit) for position, c in enumerate(checkpoints) for unit in c.units]
        mine = self.team.share([unit.size for _, unit in jobs])
        self.progress.on_total(sum(jobs[job][1].size for job in mine))
        units = [jobs[job][1] for job in mine]
        results = self.team.gather(dict(zip(mine, self._files(units), strict=True)))
        parts: list[list[_FileAudit]] = [[] for _ in checkpoints]
        for job, (position, _) in enumerate(jobs):
            parts[position].append(results[job])
        done = [_combine(c, part) for c, part in zip(checkpoints, parts, strict=True)]
        self.audits.update((result.path, result) for result in done)
        return done

    def _files(self, units: Sequence[Unit]) -> list[_FileAudit]:
        """The result of each file, in order."""
        if self.engine is None:
            return [self._file(unit) for unit in units]
        from nantrap.engines import in_order  # only who uses an engine pays for its import

        look = functools.partial(_audit_safely, verify=self.verify, workers=1, on_bytes=_ignore)
        return in_order(self.engine, look, units, lambda number: self.progress.on_bytes(units[number].size))

    def _file(self, unit: Unit) -> _FileAudit:
        """The audit of one file; its progress ends at the size of the file, also where less is read."""
        read = 0

        def on_bytes(count: int) -> None:
            nonlocal read
            read += count
            self.progress.on_bytes(count)

        result = _audit_safely(unit, verify=self.verify, workers=self.workers, on_bytes=on_bytes)
        self.progress.on_bytes(max(0, unit.size - read))  # what need not be read is done as well
        return result


def _ignore(_count: int) -> None:
    """A worker elsewhere cannot move the progress bar of this process."""


def _audit_safely(unit: Unit, *, verify: bool, workers: int | None, on_bytes: OnBytes) -> _FileAudit:
    """A file that cannot be read is a problem of its checkpoint, and never ends the audit."""
    try:
        return _audit_file(unit, verify=verify, workers=workers, on_bytes=on_bytes)
    except OSError as error:
        reason = escaped(error.strerror or str(error))
        return _FileAudit(unit.name, "unknown", problems=(checkpoint_problem("NT912", f"not read: {reason}"),))


def _audit_file(unit: Unit, *, verify: bool, workers: int | None, on_bytes: OnBytes) -> _FileAudit:
    """Open, read and judge one file, with its hash if asked. A file that cannot be read is a result, not an error."""
    files = filesystem_of(unit.path)
    with files.open(unit.path) as source:
        try:
            contents = read_items(source, unit.items) if unit.items else read_contents(source)
        except UnreadableError as error:
            return _FileAudit(unit.name, "unknown", problems=(_with_hint(error.problem, source),))
        result = _judge(unit, contents, verify=verify, workers=workers, on_bytes=on_bytes)
        problems = list(result.problems)
        if verify:
            sealed = contents.seal is not None and not any(problem.code == "NT908" for problem in problems)
            problems += check_hash(files, source, whole=sealed)
        if source.changed():
            text = "the file changed while it was read: it is still being written, or was replaced"
            problems.append(checkpoint_problem("NT909", text))
    return result._replace(problems=tuple(problems))


def _with_hint(problem: CheckpointProblem, source: ByteSource) -> CheckpointProblem:
    if not source.changed():
        return problem
    return replace(problem, message=f"{problem.message} (the file changed while it was read)")


def _judge(unit: Unit, contents: Contents, *, verify: bool, workers: int | None, on_bytes: OnBytes) -> _FileAudit:
    """The problems and facts of a file that was opened: bad values, numbers, imports, checksums."""
    seen = scan(
        contents.extents,
        verify=verify,
        workers=workers,
        on_bytes=on_bytes,
        rough=lambda tensor: "positive" if tensor.name.rpartition(".")[2] in SQUARES else "always",
    )
    fallback = unit.role or default_role(contents.tree)
    problems = [*contents.problems, *seen.problems, *problems_of_imports(contents.imports)]
    if verify:
        problems += check_seal(contents, seen.crcs)
    dtypes: dict[str, int] = {}
    for result in seen.tensors:
        role = role_of_path(result.tensor.path, default=fallback)
        problems += judge_tensor(result, role)
        if role == "model" and result.tensor.shape:
            dtype = result.tensor.dtype.name
            dtypes[dtype] = dtypes.get(dtype, 0) + 1
    facts = facts_of(contents.tree, {result.tensor.name: result for result in seen.tensors})
    known = judge_numbers(facts.numbers)
    named = {problem.tensor for problem in known}
    problems += [*known, *(p for p in judge_plain_numbers(contents.numbers, fallback) if p.tensor not in named)]
    if unit.role == "rng":
        facts.shown.pop("step", None)  # Accelerate's counts micro-batches since the last update, not training steps
    if len(problems) > MOST_PROBLEMS:
        left = len(problems) - MOST_PROBLEMS
        problems = problems[:MOST_PROBLEMS]
        problems.append(checkpoint_problem(problems[-1].code, f"{left:,} more problems of this file are not listed"))
    roles = {role_of_path(t.path, default=fallback) for extent in contents.extents for t in extent.tensors}
    return _FileAudit(
        name=unit.name,
        format=contents.format,
        tensors=len(contents.names),
        problems=tuple(problems),
        facts=facts.shown,
        dtypes=dtypes,
        names=frozenset(contents.names),
        holds_model=bool(roles & {"model", "ema"}),
        holds_optimizer="optimizer" in roles or "lr" in facts.shown,
    )


def _combine(checkpoint: Checkpoint, parts: Sequence[_FileAudit]) -> CheckpointAudit:
    """One verdict from all files of a checkpoint."""
    single = len(parts) == 1 and checkpoint.format == "unknown"
    problems = list(checkpoint.problems)
    facts: dict[str, Any] = dict(checkpoint.facts)
    dtypes: dict[str, int] = {}
    for part in parts:
        problems += [p if single else replace(p, place=replace(p.place, file=part.name)) for p in part.problems]
        for key, value in part.facts.items():
            facts.setdefault(key, value)
        for dtype, count in part.dtypes.items():
            dtypes[dtype] = dtypes.get(dtype, 0) + count
    if checkpoint.index is not None:
        problems += misplaced(checkpoint.index, {part.name: part.names for part in parts if part.tensors})
    problems += judge_dtypes(dtypes)
    problems.sort(key=lambda problem: problem.severity != "error")
    return CheckpointAudit(
        path=checkpoint.path,
        format=parts[0].format if single else checkpoint.format,
        tensors=sum(part.tensors for part in parts),
        bytes=checkpoint.size,
        problems=tuple(problems),
        facts=facts,
        files=tuple(part.name for part in parts),
        holds_model=any(part.holds_model for part in parts),
        holds_optimizer=any(part.holds_optimizer for part in parts),
    )


# ---- several processes: the files are shared among the ranks that `torchrun` started


Result = TypeVar("Result")


class AuditTeam(NamedTuple):
    """This process among the ranks. Alone: rank 0 of 1, and nothing is sent."""

    rank: int = 0
    size: int = 1

    def share(self, weights: Sequence[int]) -> list[int]:
        """The positions that are this rank's work: the largest first, each to the rank with the least work."""
        loads = [0] * self.size
        mine = []
        for position in sorted(range(len(weights)), key=lambda position: (-weights[position], position)):
            least = loads.index(min(loads))
            loads[least] += weights[position] + 1
            if least == self.rank:
                mine.append(position)
        return sorted(mine)

    def gather(self, mine: dict[int, Result]) -> dict[int, Result]:
        """The results of all ranks, on every rank."""
        if self.size == 1:
            return mine
        import torch.distributed as dist

        gathered: list[dict[int, Result] | None] = [None] * self.size
        dist.all_gather_object(gathered, mine)
        return {position: result for part in gathered if part for position, result in part.items()}

    def agree(self, value: Result) -> Result:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


@contextmanager
def ranks_of_environment() -> Iterator[AuditTeam]:
    """The ranks `torchrun` started, joined over gloo for as long as the block lasts; alone if there are none."""
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if size == 1 or "RANK" not in os.environ:
        yield AuditTeam()
        return
    import torch.distributed as dist

    mine = not dist.is_initialized()
    if mine:
        dist.init_process_group("gloo")
    try:
        yield AuditTeam(dist.get_rank(), dist.get_world_size())
        if mine:
            dist.barrier()  # gloo can wait for a rank that has left already
    finally:
        if mine:
            dist.destroy_process_group()
