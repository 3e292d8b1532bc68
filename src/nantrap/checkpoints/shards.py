"""Are all shards there, and none too many? By the index beside them, else by their names (`-00002-of-00005`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from nantrap.checkpoints.filesystem import Entry, FileSystem, read_text
from nantrap.checkpoints.verdict import Problem

_NUMBERED = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")
_RANKED = re.compile(r"(?P<stem>(?:.*zero_pp_rank_|mp_rank_))(?P<number>\d+)(?P<suffix>_.*\.pt)")


def index_of(
    files: FileSystem, index: Entry, present: Mapping[str, Entry]
) -> tuple[dict[str, str] | None, list[Problem]]:
    """The map from tensor to file of a `*.index.json`, and which of the files are missing or unexpected."""
    try:
        content = json.loads(read_text(files, index.path))
        mapping = {str(tensor): str(name) for tensor, name in content["weight_map"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{index.name} does not say which tensor is in which file: {error!r}"
        return None, [Problem("NT908", text, file=index.name)]
    counts: dict[str, int] = {}
    for name in mapping.values():
        counts[name] = counts.get(name, 0) + 1
    problems = [
        Problem("NT907", f"{name} is missing: {count:,} of {len(mapping):,} tensors are in it", file=name)
        for name, count in sorted(counts.items())
        if name not in present
    ]
    stems = {match["stem"] for name in counts if (match := _NUMBERED.fullmatch(name))}
    for name in sorted(present):
        match = _NUMBERED.fullmatch(name)
        if match and match["stem"] in stems and name not in counts:
            text = f"{name} is not in {index.name}: left over from another save?"
            problems.append(Problem("NT907", text, severity="warning", file=name))
    return mapping, problems


def missing_by_name(names: Iterable[str]) -> list[Problem]:
    """Gaps in numbered shards that have no index: `x-00001-of-00003` without its sisters, rank 2 without rank 1."""
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
        for number in sorted(set(range(1, count + 1)) - seen):
            name = f"{stem}-{number:05d}-of-{count:05d}{suffix}"
            problems.append(Problem("NT907", f"{name} is missing", file=name))
    for (stem, suffix), texts in ranked.items():
        there, width = {int(text) for text in texts}, min(map(len, texts))
        for number in sorted(set(range(max(there))) - there):
            name = f"{stem}{number:0{width}d}{suffix}"
            problems.append(Problem("NT907", f"{name} is missing: rank {max(there)} is there", file=name))
    return problems


def unexpected_by_name(names: Iterable[str], *, expected: set[str], suffix: str) -> list[Problem]:
    """Files that look like shards and belong to no plan."""
    return [
        Problem("NT907", f"{name} is in no plan: left over from another save?", severity="warning", file=name)
        for name in sorted(names)
        if name.endswith(suffix) and name not in expected
    ]


def misplaced(index: Mapping[str, str], found: Mapping[str, frozenset[str]]) -> list[Problem]:
    """Tensors that the index promises and that their file does not hold. `found` has the names in each file."""
    problems = []
    for tensor, name in index.items():
        if name in found and tensor not in found[name]:
            text = f"{tensor} should be in {name} and is not"
            problems.append(Problem("NT907", text, tensor=tensor, file=name))
    return problems
