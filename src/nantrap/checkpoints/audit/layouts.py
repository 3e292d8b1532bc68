"""Which files make a checkpoint: a single file, a sharded one, or the folder a framework writes.

A folder is a checkpoint if it looks like one of a known kind; otherwise it is a folder that contains checkpoints, and
its files and subfolders are checked one by one. Nothing but names, sizes and small JSON files is read here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.dcp import Item, plan_of, read_items
from nantrap.checkpoints.audit.facts import facts_of_trainer_state, role_of_word
from nantrap.checkpoints.audit.files import LOG_NAME, FileEntry, FileSystem, filesystem_of, read_text, walk
from nantrap.checkpoints.audit.readers import HEAD_BYTES, read_contents, reader_of
from nantrap.checkpoints.audit.verdict import CheckpointProblem, Role, checkpoint_problem
from nantrap.errors import UsageError
from nantrap.incident.wording import escaped

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".safetensors", ".pkl", ".distcp", ".tar")
"""In a folder, only files with these endings are taken for checkpoints."""

_WEIGHTS = re.compile(r"(model|pytorch_model|adapter_model|diffusion_pytorch_model)(_\d+)?([.-].*)?\.(safetensors|bin)")
_PARTS = re.compile(
    r"(optimizer(_\d+)?\.(pt|bin)|scheduler(_\d+)?\.(pt|bin)|scaler\.pt|rng_state(_\d+)?\.pth|random_states_\d+\.pkl|"
    r"sampler(_\d+)?\.bin|training_args\.bin|custom_checkpoint_\d+\.pkl|dl_state_dict\.bin)"
)
_DEEPSPEED = re.compile(r".*(mp_rank_\d+_model_states|_optim_states|layer_\d+-model_.*)\.pt")


class Unit(NamedTuple):
    """One file to read. `items` are the parts of a DCP file, `role` what its name shows."""

    path: str
    name: str
    size: int
    role: Role | None = None
    items: tuple[Item, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What belongs together. `index` maps tensors to the file they should be in."""

    path: str
    format: str
    units: tuple[Unit, ...]
    modified: float = 0.0
    problems: tuple[CheckpointProblem, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    index: dict[str, str] | None = None

    @property
    def size(self) -> int:
        """All its bytes."""
        return sum(unit.size for unit in self.units)


def find_checkpoints(paths: Iterable[str]) -> list[Checkpoint]:
    """All checkpoints at the given files, folders, globs and URLs, each file once, in the order given."""
    found: list[Checkpoint] = []
    for path in paths:
        files = filesystem_of(path)
        entry = files.stat(path)
        if entry is not None:
            found += _at(files, entry)
            continue
        matches = files.glob(path) if re.search(r"[*?\[]", path) else []
        if not matches:
            raise UsageError(f"{path} does not exist; give a file, a folder, a glob in quotes or a URL")
        for match in matches:
            matched = files.stat(match)
            if matched is not None:
                found += _in_folder(files, matched) if matched.is_folder else _named_file(files, matched)
    if not found:
        raise UsageError(
            f"no checkpoint in {', '.join(paths)}; looked for files ending in {', '.join(SUFFIXES)} "
            "and for DCP, DeepSpeed, Accelerate and transformers folders"
        )
    return _without_links_to_others(found)


def contents_at(path: str) -> Iterator[Contents]:
    """The contents of every file of the checkpoints at a path that can be read."""
    files = filesystem_of(path)
    for checkpoint in find_checkpoints([path]):
        for unit in checkpoint.units:
            try:
                with files.open(unit.path) as source:
                    yield read_items(source, unit.items) if unit.items else read_contents(source)
            except (OSError, UnreadableError):
                continue  # the audit has reported what is wrong with it


def _at(files: FileSystem, entry: FileEntry) -> list[Checkpoint]:
    """The checkpoints at a path: the file itself, or those in the folder; raises if there is none."""
    if not entry.is_folder:
        return [_file(files, entry)]
    found = _in_folder(files, entry)
    if not found:
        raise UsageError(
            f"no checkpoint in {entry.path}; looked for files ending in {', '.join(SUFFIXES)} "
            "and for DCP, DeepSpeed, Accelerate and transformers folders"
        )
    return found


def _file(files: FileSystem, entry: FileEntry) -> Checkpoint:
    """A file the user named: whatever it is, it is reported."""
    if entry.name.endswith(".index.json"):
        folder = entry.path.removesuffix(entry.name).rstrip("/\\") or "."
        try:
            siblings = {sibling.name: sibling for sibling in files.entries(folder)}
        except OSError as error:
            return _closed_folder(error)
        return _sharded(files, entry, siblings)
    role = role_of_word(re.sub(r"[-_.]?\d+$", "", entry.name.partition(".")[0]))
    unit = _unit(entry, role=role if role in ("rng", "scheduler", "scaler", "optimizer") else None)
    return Checkpoint(entry.path, "unknown", (unit,), entry.modified)


def _named_file(files: FileSystem, entry: FileEntry) -> list[Checkpoint]:
    """A file a glob matched: reported if its name or its first bytes are those of a checkpoint."""
    return [_file(files, entry)] if _is_candidate(files, entry) else []


def _in_folder(files: FileSystem, folder: FileEntry) -> list[Checkpoint]:
    """Every checkpoint below a folder, without parts of folder checkpoints and without what is in quarantine."""
    found: list[Checkpoint] = []
    taken: list[str] = []
    closed: list[OSError] = []
    for path, entries in walk(files, folder.path, closed):
        if any(files.identity(path).startswith(part) for part in taken):
            continue
        if path != folder.path and any(entry.name == LOG_NAME for entry in entries):
            taken.append(files.identity(path))  # what was put into quarantine is not listed
            continue
        whole = _folder_checkpoint(files, path, entries)
        used: set[str] = set()
        if whole is not None:
            found.append(whole)
            used = _own_files(whole, entries)
            taken += [files.identity(e.path) for e in entries if e.is_folder and _belongs(e.name, whole)]
        for entry in entries:
            if not entry.is_folder and entry.path not in used and entry.name.endswith(SUFFIXES):
                found.append(_file(files, entry))
    found += [_closed_folder(error) for error in closed]
    return found


def _own_files(whole: Checkpoint, entries: list[FileEntry]) -> set[str]:
    """The files that are not checkpoints themselves: its units, those that its problems name, and items of DCP."""
    mentioned = {problem.file for problem in whole.problems}
    suffix = ".distcp" if whole.format == "dcp" else "\0"
    spoken_of = {e.path for e in entries if e.name in mentioned or e.name.endswith(suffix)}
    return spoken_of | {unit.path for unit in whole.units}


def _closed_folder(error: OSError) -> Checkpoint:
    problem = checkpoint_problem("NT912", f"the folder could not be listed: {error.strerror or error}")
    return Checkpoint(str(error.filename), "unknown", (), problems=(problem,))


def _folder_checkpoint(files: FileSystem, path: str, entries: list[FileEntry]) -> Checkpoint | None:
    """The folder as one checkpoint, or `None` if it only contains checkpoints."""
    by_name = {entry.name: entry for entry in entries if not entry.is_folder}
    if ".metadata" in by_name:
        return _dcp(files, path, by_name)
    if any(_DEEPSPEED.fullmatch(name) for name in by_name):
        return _deepspeed(path, by_name)
    weights = [name for name in by_name if _WEIGHTS.fullmatch(name)]
    parts = [name for name in by_name if _PARTS.fullmatch(name)]
    index = next((e for name, e in by_name.items() if name.endswith(".index.json")), None)
    inner = [e for e in entries if e.is_folder and re.fullmatch(r"(pytorch_model_fsdp|optimizer)_\d+", e.name)]
    if not (index or weights or inner or len(parts) > 1):
        return None
    units = [_unit(by_name[name], role=role_of_word(name.partition(".")[0])) for name in sorted(weights + parts)]
    problems: list[CheckpointProblem] = []
    mapping = None
    if index is not None:
        mapping, index_problems = index_of(files, index, by_name)
        problems += index_problems
        expected = set((mapping or {}).values())
        known = {unit.name for unit in units}
        units += [_unit(by_name[name]) for name in sorted(expected - known) if name in by_name]
    else:
        problems += missing_by_name(by_name)
    for entry in inner:
        try:
            inside = {e.name: e for e in files.entries(entry.path)}
        except OSError as error:
            problems.append(
                checkpoint_problem("NT912", f"{escaped(entry.name)} could not be listed: {error.strerror or error}")
            )
            continue
        nested = _dcp(files, entry.path, inside, prefix=entry.name)
        units += nested.units
        problems += nested.problems
    facts: dict[str, Any] = {}
    if "trainer_state.json" in by_name:
        try:
            facts = facts_of_trainer_state(read_text(files, by_name["trainer_state.json"].path))
        except OSError as error:
            text = f"trainer_state.json could not be read: {error.strerror or error}"
            problems.append(checkpoint_problem("NT912", text, severity="warning", file="trainer_state.json"))
    kind = _kind(by_name, parts, sharded=index is not None)
    newest = max((e.modified for e in by_name.values()), default=0.0)
    return Checkpoint(path, kind, tuple(units), newest, tuple(problems), facts, mapping)


def _kind(by_name: dict[str, FileEntry], parts: list[str], *, sharded: bool) -> str:
    if "trainer_state.json" in by_name or "training_args.bin" in by_name:
        return "transformers"
    if any(name.startswith("random_states_") or name.endswith("optimizer.bin") for name in parts):
        return "accelerate"
    suffix = "safetensors" if any(name.endswith(".safetensors") for name in by_name) else "torch"
    return f"{suffix}-sharded" if sharded else suffix


def _sharded(files: FileSystem, index: FileEntry, siblings: dict[str, FileEntry]) -> Checkpoint:
    mapping, problems = index_of(files, index, siblings)
    names = sorted(set((mapping or {}).values()))
    units = tuple(_unit(siblings[name]) for name in names if name in siblings)
    kind = "safetensors-sharded" if "safetensors" in index.name else "torch-sharded"
    return Checkpoint(index.path, kind, units, index.modified, tuple(problems), index=mapping)


def _dcp(files: FileSystem, path: str, by_name: dict[str, FileEntry], *, prefix: str = "") -> Checkpoint:
    """A distributed checkpoint: the files that its metadata names, and those that are missing."""
    metadata = by_name.get(".metadata")
    if metadata is None:
        problem = checkpoint_problem("NT907", f"{prefix or path} has no .metadata: the distributed save did not finish")
        return Checkpoint(path, "dcp", (), problems=(problem,))
    plan, problems = plan_of(files, metadata)
    units = []
    for name, items in plan.items():
        label = f"{prefix}/{name}" if prefix else name
        if name in by_name:
            units.append(_unit(by_name[name], name=label, role=role_of_word(prefix), items=tuple(items)))
        else:
            text = f"{escaped(label)} is missing: {len(items):,} of the checkpoint's items are in it"
            problems.append(checkpoint_problem("NT907", text, file=label))
    if plan:
        problems += unexpected_by_name(by_name, expected=set(plan), suffix=".distcp")
    return Checkpoint(path, "dcp", tuple(units), metadata.modified, tuple(problems))


def _deepspeed(path: str, by_name: dict[str, FileEntry]) -> Checkpoint:
    names = sorted(name for name in by_name if _DEEPSPEED.fullmatch(name))
    units = tuple(_unit(by_name[n], role="optimizer" if "optim" in n else "model") for n in names)
    newest = max(by_name[name].modified for name in names)
    return Checkpoint(path, "deepspeed", units, newest, tuple(missing_by_name(by_name)))


def _belongs(folder: str, whole: Checkpoint) -> bool:
    return any(unit.name.startswith(f"{folder}/") for unit in whole.units) or any(
        problem.code == "NT907" and folder in problem.message for problem in whole.problems
    )


def _is_candidate(files: FileSystem, entry: FileEntry) -> bool:
    if entry.name.endswith(SUFFIXES) or entry.name.endswith(".index.json"):
        return True
    try:
        with files.open(entry.path) as source:
            return reader_of(source.read(0, HEAD_BYTES)) is not None
    except OSError:
        return False


def _unit(entry: FileEntry, *, name: str | None = None, role: Role | None = None, items: tuple[Item, ...] = ()) -> Unit:
    return Unit(entry.path, name or entry.name, entry.size, role, items)


def _without_links_to_others(found: list[Checkpoint]) -> list[Checkpoint]:
    """`last.ckpt` that is a link to `epoch=3.ckpt` would be the same checkpoint twice: the real name stays."""
    chosen: dict[str, Checkpoint] = {}
    for checkpoint in found:
        files = filesystem_of(checkpoint.path)
        identity = files.identity(checkpoint.path)
        known = chosen.get(identity)
        if known is None or (files.is_link(known.path) and not files.is_link(checkpoint.path)):
            chosen[identity] = checkpoint
    return list(chosen.values())


_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_RANKED = re.compile(r"(?P<stem>(?:.*zero_pp_rank_|mp_rank_))(?P<number>\d+)(?P<suffix>_.*\.pt)")


def index_of(
    files: FileSystem, index: FileEntry, present: Mapping[str, FileEntry]
) -> tuple[dict[str, str] | None, list[CheckpointProblem]]:
    """The map from tensor to file of a `*.index.json`, and which of the files are missing or unexpected."""
    try:
        content = json.loads(read_text(files, index.path))
        mapping = {str(tensor): str(name) for tensor, name in content["weight_map"].items()}
    except OSError as error:
        return None, [
            checkpoint_problem("NT912", f"{escaped(index.name)} could not be read: {error.strerror}", file=index.name)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{escaped(index.name)} does not say which tensor is in which file: {escaped(repr(error))}"
        return None, [checkpoint_problem("NT908", text, file=index.name)]
    counts: dict[str, int] = {}
    for name in mapping.values():
        counts[name] = counts.get(name, 0) + 1
    problems = [
        checkpoint_problem(
            "NT907", f"{escaped(name)} is missing: {count:,} of {len(mapping):,} tensors are in it", file=name
        )
        for name, count in sorted(counts.items())
        if name not in present
    ]
    stems = {match["stem"] for name in counts if (match := _NUMBERED.fullmatch(name))}
    for name in sorted(present):
        match = _NUMBERED.fullmatch(name)
        if match and match["stem"] in stems and name not in counts:
            text = f"{escaped(name)} is not in {escaped(index.name)}: left over from another save?"
            problems.append(checkpoint_problem("NT907", text, severity="warning", file=name))
    return mapping, problems


def missing_by_name(names: Iterable[str]) -> list[CheckpointProblem]:
    """Gaps in numbered shards that have no index: `x-00001-of-00003` without the others, rank 2 without rank 1."""
    numbered: dict[tuple[str, str, int], set[int]] = {}
    ranked: dict[tuple[str, str], set[str]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            key = (match["stem"], match["suffix"], int(match["count"]))
            numbered.setdefault(key, set()).add(int(match["number"]))
        elif match := _RANKED.fullmatch(name):
            ranked.setdefault((match["stem"], match["suffix"]), set()).add(match["number"])
    problems = []
    for (stem, suffix, count), seen in numbered.items():
        names = (f"{stem}-{number:05d}-of-{count:05d}{suffix}" for number in _absent(1, count, seen))
        problems += _missing(names, count - len(seen), "")
    for (stem, suffix), texts in ranked.items():
        there, width = {int(text) for text in texts}, min(map(len, texts))
        names = (f"{stem}{number:0{width}d}{suffix}" for number in _absent(0, max(there) - 1, there))
        problems += _missing(names, max(there) + 1 - len(there), f": rank {max(there)} is there")
    return problems


def _absent(first: int, last: int, there: set[int]) -> Iterator[int]:
    return (number for number in range(first, last + 1) if number not in there)


def _missing(names: Iterator[str], count: int, why: str) -> list[CheckpointProblem]:
    """A problem for each file that is missing; beyond `_MOST_NAMED` only their number: a name can claim any."""
    found = [
        checkpoint_problem("NT907", f"{escaped(name)} is missing{why}", file=name)
        for name in itertools.islice(names, _MOST_NAMED)
    ]
    if count > len(found) > 0:
        found.append(
            checkpoint_problem("NT907", f"{count - len(found):,} more files of the same save are missing{why}")
        )
    return found


_MOST_NAMED = 20


def unexpected_by_name(names: Iterable[str], *, expected: set[str], suffix: str) -> list[CheckpointProblem]:
    """Files that look like shards and belong to no plan."""
    return [
        checkpoint_problem(
            "NT907", f"{escaped(name)} is in no plan: left over from another save?", severity="warning", file=name
        )
        for name in sorted(names)
        if name.endswith(suffix) and name not in expected
    ]


def misplaced(index: Mapping[str, str], found: Mapping[str, frozenset[str]]) -> list[CheckpointProblem]:
    """Tensors that the index promises and that their file does not hold. `found` has the names in each file."""
    problems = []
    for tensor, name in index.items():
        if name in found and tensor not in found[name]:
            text = f"{escaped(tensor)} should be in {escaped(name)} and is not"
            problems.append(checkpoint_problem("NT907", text, tensor=tensor, file=name))
    return problems
