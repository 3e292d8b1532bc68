"""Writes tables from results on disk: python -m zoo.tables

In `docs/benchmarks.md`, `docs/zoo.md` and `zoo/README.md` what is between `<!-- begin NAME -->` and
`<!-- end NAME -->` is replaced; nothing is measured and nothing is typed in.
The results are those of `python -m zoo --save`, of `python -m zoo.outside` and of the files of `benchmarks` with
`--save`; first measurements are those of `manifest.json`.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterable
from typing import Any

from zoo.loading import MEASURE_ONLY, ZOO, is_healthy, is_script, manifest
from zoo.results import BENCHMARKS, COSTS, OUTSIDE, RESULTS, read, tally_of
from zoo.tools import tools

PAGES = (ZOO.parent / "docs" / "benchmarks.md", ZOO.parent / "docs" / "zoo.md", ZOO / "README.md")
FORMS = {"attempt": "nantrap_attempt", "two lines": "nantrap_two_lines", "run": "nantrap_run"}
_HEADS = ("noticed", "right step", "place, as named", "place in full", "line", "cause", "false proofs", "false alarms",
          "finite at the end", "usable at the end", "answer, median s")  # fmt: skip
_NOT_OF_SCRIPTS = ("place, as named", "place in full", "answer, median s")


def results() -> list[dict[str, Any]]:
    """Every stored result of a tool, nantrap first, then by how many failures were placed."""
    found = [result for name in tools() if (result := _of(name)) and not name.endswith("_plain")]

    def rank(result: dict[str, Any]) -> tuple[Any, ...]:
        counts = tally_of(result).counts()
        return (not result["tool"].startswith("nantrap"), -counts["place"], -counts["step"], -counts["found"])

    return sorted(found, key=rank)


@functools.cache
def _of(tool: str) -> dict[str, Any]:
    return read(RESULTS / f"{tool}.json")


def cells(counts: dict[str, Any]) -> list[str]:
    """The figures of one tool over some programs."""
    of = counts["programs"]
    shares = [f"{counts[name]}/{of}" for name in ("found", "step", "place", "full_place")]
    shares += [f"{counts['line']}/{counts['lines']}" if counts["lines"] else "", f"{counts['cause']}/{of}"]
    shares += [str(counts["false_proofs"]), f"{counts['false_alarms']}/{counts['controls']}"]
    shares += [f"{counts[name]}/{counts['ended']}" for name in ("finite_at_the_end", "usable_at_the_end")]
    return [*shares, f"{counts['median_seconds']:.3f}" if "median_seconds" in counts else ""]


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table in Markdown."""
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _collections(*, scripts: bool) -> list[str]:
    """The collections of whole scripts, or the others."""
    found = {entry["collection"] for name, entry in manifest()["programs"].items() if is_script(ZOO / name)}
    return [name for name in manifest()["collections"] if (name in found) == scripts]


def _of_healthy(names: Iterable[str]) -> int:
    return sum(is_healthy(ZOO / name) for name in names)


def counts() -> str:
    """How many programs and scripts there are."""
    entries = manifest()["programs"]
    scripts = [name for name in entries if is_script(ZOO / name)]
    programs = [name for name in entries if name not in scripts]
    healthy = _of_healthy(programs)
    threads = sum("threads" in entry for entry in entries.values())
    return (
        f"{len(programs)} programs: {len(programs) - healthy} fail in training; {healthy} are healthy, although a"
        f" careless detector would accuse them. {len(scripts)} whole scripts, {_of_healthy(scripts)} of them healthy."
        f" {threads} of all name the public threads that they follow."
    )


def collection_table() -> str:
    """What each collection holds, and who wrote it."""
    programs = manifest()["programs"]
    rows = []
    for name, each in manifest()["collections"].items():
        own = [program for program, entry in programs.items() if entry["collection"] == name]
        healthy = _of_healthy(own)
        rows.append([f"`{name}`", str(len(own) - healthy), str(healthy), each["about"], each["author"]])
    return table(("collection", "fail", "healthy", "what it holds", "how it was written"), rows)


def missed() -> str:
    """The programs whose step or cause nantrap has wrong, by form."""
    found: dict[str, dict[str, str]] = {}
    for form, tool in FORMS.items():
        for answer in tally_of(_of(tool)).failures if _of(tool) else ():
            wrong = [word for word, right in (("step", answer.step), ("cause", answer.cause)) if not right]
            wrong = ["nothing noticed"] if not answer.found else wrong
            wrong += ["a false proof"] if answer.false_proofs else []
            if wrong:
                found.setdefault(answer.program, {})[form] = ", ".join(wrong)
    rows = [[f"`{program}`", *(wrong.get(form, "") for form in FORMS)] for program, wrong in sorted(found.items())]
    return table(("program", *FORMS), rows)


def truths() -> str:
    """How many truths a plain loop confirms."""
    parts = read(RESULTS / "verify.json").values()
    if not parts:
        return "Nothing was measured yet."
    found = {name: words for part in parts for name, words in part["found"].items()}
    wrong = sorted(name for name, words in found.items() if words)
    dates, commands = (" and ".join(sorted({f"{part[key]}" for part in parts})) for key in ("date", "command"))
    said = f"On {dates}, {len(found) - len(wrong)} of the {len(found)} programs and scripts that may be read hold "
    said += f"(`{commands.replace(' and ', '`, `')}`)."
    return f"{said} Not confirmed: {', '.join(f'`{name}`' for name in wrong)}." if wrong else said


def all_programs() -> str:
    """Each tool over every program that may be read."""
    found = results()
    rows = []
    own = _collections(scripts=False)
    every = sum(
        entry["collection"] in own and entry.get("use") != MEASURE_ONLY for entry in manifest()["programs"].values()
    )
    for result in found:
        tally = tally_of(result, own)
        part = "" if len(tally.answers) == every else f" ({len(tally.answers)} of {every} programs)"
        rows.append([f"{result['about']}{part}", *cells(tally.counts())])
    words = []
    for whose, ours in (("nantrap's rows", True), ("The others", False)):
        measured = [each for r in found if r["tool"].startswith("nantrap") == ours for each in r["measured"]]
        words.append(f"{whose}: {settings(measured)}")
    return "\n\n".join([table(("tool", *_HEADS), rows), *words])


def scripts() -> str:
    """The tools that need no change of a script over every whole script."""
    heads = [head for head in _HEADS if head not in _NOT_OF_SCRIPTS]
    rows, measured = [], []
    for result in filter(None, map(_of, tools())):
        counts = tally_of(result, _collections(scripts=True)).counts()
        if counts["programs"]:
            row = dict(zip(_HEADS, cells(counts), strict=True))
            rows.append([result["about"], *(row[head] for head in heads)])
            measured += [each for each in result["measured"] if "scripts" in each["command"]]
    return f"{table(('tool', *heads), rows)}\n\n{settings(measured)}"


def unseen() -> str:
    """Each tool over the collections that were not read as a whole when rules were written."""
    apart = [name for name, each in manifest()["collections"].items() if each.get("use") == MEASURE_ONLY]
    own = _collections(scripts=False)
    read_later = [name for name in own if not manifest()["collections"][name]["seen"] and name not in apart]
    parts = []
    for name in [*apart, *read_later]:
        rows = []
        for result in results():
            counts = result["measure_only"].get(name) if name in apart else tally_of(result, [name]).counts()
            if counts and counts["programs"]:
                rows.append([result["about"], *cells(counts)])
        if rows:
            parts.append(f"`{name}`:\n\n{table(('tool', *_HEADS), rows)}")
    return "\n\n".join(parts)


def first_and_now() -> str:
    """nantrap on each collection: the first measurement, and now."""
    heads = ("collection", "form", "cause, first", "cause, now", "place, first", "place, now", "false proofs, first",
             "false proofs, now", "false alarms, first", "false alarms, now")  # fmt: skip
    rows, scripts = [], _collections(scripts=True)
    for name, each in manifest()["collections"].items():
        for form, tool in FORMS.items():
            measured = each["first_measurement"] or {}
            first = measured.get(form, measured.get(tool, {}))
            result = _of(tool)
            now: dict[str, Any] = {}
            if result:
                apart = each.get("use") == MEASURE_ONLY
                now = result["measure_only"].get(name, {}) if apart else tally_of(result, [name]).counts()
            if first or now.get("programs"):
                both = (first, now if now.get("programs") or now.get("controls") else {})
                shown = [_share(one, "cause", "programs") for one in both]
                shown += ["" if name in scripts else _share(one, "full_place", "programs") for one in both]
                shown += [str(one.get("false_proofs", "")) for one in both]
                shown += [_share(one, "false_alarms", "controls") for one in both]
                rows.append([f"`{name}`", form, *shown])
    return table(heads, rows)


def _share(counts: dict[str, Any], name: str, of: str) -> str:
    value = counts.get(name, counts.get("place") if name == "full_place" else None)
    return "" if value is None or of not in counts else f"{value}/{counts[of]}"


def cost() -> str:
    """What a healthy step costs with each tool."""
    parts = read(COSTS)
    models = list(next(iter(parts.values()))["found"]) if parts else []
    rows = []
    for name in sorted(parts, key=lambda each: parts[each]["found"][models[0]]["ratio"]):
        found = parts[name]["found"]
        rows.append([tools()[name].about, *(_ratio(found[m]) for m in models)])
        rows[-1] += [" / ".join(f"{found[m]['control_ratio']:.2f}" for m in models)]
    return f"{table(('tool', *models, 'controls'), rows)}\n\n{settings(parts.values())}"


def _ratio(row: dict[str, float]) -> str:
    return f"{row['ratio']:.2f} ({row['low']:.2f} .. {row['high']:.2f})"


def outside() -> str:
    """What was measured on public sets, with their commits."""
    parts = []
    for part in read(OUTSIDE).values():
        found = part["found"]
        where = f"`{found['repository']}` at `{found['commit'][:12]}`, {part['date']}"
        lines = [f"**{found['set']}**, {where}. {found['about']}", table(found["heads"], found["rows"])]
        parts.append("\n\n".join([*lines, f"`{part['command']}`"]))
    return "\n\n".join(parts)


def settings(stored: Iterable[dict[str, Any]]) -> str:
    """Dates, machines and versions of some results, and how to repeat them."""
    stored = list(stored)
    if not stored:
        return "Nothing was measured yet."
    dates = sorted({each["date"] for each in stored})
    machines = sorted({f"{m['processor']}, {m['cores']} cores" for m in (each["machine"] for each in stored)})
    loads = [each["machine"]["load"] for each in stored]
    versions: dict[str, set[str]] = {}
    for each in stored:
        for package, version in each["versions"].items():
            versions.setdefault(package, set()).add(version)
    packages = ", ".join(f"{name} {' and '.join(sorted(found))}" for name, found in sorted(versions.items()))
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    load = f"load {min(loads):g} to {max(loads):g}"
    commits = sorted({each["commit"] for each in stored if each.get("commit")})
    at = f", at commit {' and '.join(commits)}" if commits else ""
    commands = sorted({re.sub(r"--tool \S+( .*)?", "--tool NAME", each["command"]) for each in stored})
    said = f"Measured {when}{at} on {'; '.join(machines)} ({load}); {packages}. "
    return said + "; ".join(f"`{c}`" for c in commands)


def _stored(*names: str) -> dict[str, dict[str, Any]]:
    """The parts of stored benchmarks by their names; those of a later file join those of an earlier one."""
    parts: dict[str, dict[str, Any]] = {}
    for name in names:
        for part, each in read(BENCHMARKS / f"{name}.json").items():
            of = f" of {name.partition('_')[0]}.py"
            own = {line + of if line.startswith("A/A") else line: row for line, row in each["found"].items()}
            joined = parts.setdefault(part, {"found": {}, "measured": []})
            joined["found"] |= own
            joined["measured"].append(each)
    return parts


def _measured(parts: dict[str, dict[str, Any]]) -> str:
    return settings(each for part in parts.values() for each in part["measured"])


def _overhead(*names: str) -> str:
    parts = _stored(*names)
    models = [name for name in ("transformer", "cnn", "mlp") if name in parts]
    if not models:
        return "Nothing was measured yet."
    lines = dict.fromkeys(line for model in models for line in parts[model]["found"])
    plain = {model: next(iter(parts[model]["found"].values()))["plain_ms"] for model in models}
    heads = ("", *(f"{model}, {plain[model]:,.2f} ms per step" for model in models))
    rows = [[line, *(_ratio(parts[m]["found"][line]) if line in parts[m]["found"] else "" for m in models)]
            for line in lines]  # fmt: skip
    start = parts.pop("start", None)
    words = f". A script that only imports torch starts {start['found']['extra']:.2f} s later." if start else ""
    return f"{table(heads, rows)}\n\n{_measured(parts)}{words}"


def overhead() -> str:
    """What a healthy step costs, in two lines, by `attempt` and under `nantrap run`."""
    return _overhead("overhead", "launch")


def blocks() -> str:
    """The same in blocks of steps, where caches are warm."""
    return _overhead("overhead_blocks", "launch_blocks")


def calls() -> str:
    """How many calls a healthy step makes, and the first bad one."""
    parts = _stored("path")
    if not parts:
        return "Nothing was measured yet."
    bad = parts.pop("first bad step", None)
    ways = list(next(iter(parts.values()))["found"])
    rows = [
        [model, *(f"{part['found'][way]['calls']} calls in {part['found'][way]['files']} files" for way in ways)]
        for model, part in parts.items()
    ]
    words = ""
    if bad is not None:
        found, command = bad["found"], bad["measured"][0]["command"]
        words = (f". The first bad step of a run, by `attempt`, until its incident is written: {found['calls']:,} calls"
                 f" of {found['functions']} functions in {found['files']} files: `{command}`.")  # fmt: skip
    return f"{table(('', *ways), rows)}\n\n{_measured(parts)}{words}"


def tensors() -> str:
    """What the guard adds to a step with many parameter tensors."""
    parts = _stored("tensors")
    rows = [[count, f"{p['found']['optimizer_ms']:.2f}", f"{p['found']['guard_ms']:.2f}", f"{p['found']['ratio']:.2f}"]
            for count, p in parts.items()]  # fmt: skip
    heads = ("parameter tensors", "the optimizer's step, ms", "what the guard adds, ms", "as a share")
    return f"{table(heads, rows)}\n\n{_measured(parts)}"


def growth() -> str:
    """How the guard's cost grows along each axis."""
    parts, rows = _stored("growth"), []
    for name, part in parts.items():
        for size, point in part["found"].items():
            spread = f" ({point['guarded_low']:.2f} .. {point['guarded_high']:.2f})" if "guarded_low" in point else ""
            ratios = [f"{point['guarded']:.3f}{spread}", f"{point['control']:.3f}"]
            rows.append([name, size, f"{point['plain_ms']:.2f}", *ratios, f"{point['added_ms']:.2f}"])
    heads = ("along", "size", "plain step, ms", "guard", "control", "added, ms")
    return f"{table(heads, rows)}\n\n{_measured(parts)}"


PARTS = {
    "counts": counts, "collections": collection_table, "missed": missed, "truths": truths,
    "tools": all_programs, "scripts": scripts, "unseen": unseen,
    "first": first_and_now, "cost": cost, "outside": outside, "growth": growth,
    "overhead": overhead, "blocks": blocks, "calls": calls, "tensors": tensors,
}  # fmt: skip


def written(text: str) -> str:
    """A page with the parts between its marks replaced."""

    def replace(found: re.Match[str]) -> str:
        return f"{found[1]}\n{PARTS[found[2]]()}\n{found[3]}"

    return re.sub(r"(<!-- begin (\w+) -->)\n.*?(<!-- end \2 -->)", replace, text, flags=re.DOTALL)


def main() -> int:
    """Write the pages, or with `--check` say whether they are as the results say."""
    stale = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = written(before)
        stale += before != after
        if "--check" not in sys.argv:
            page.write_text(after, encoding="utf-8")
    if "--check" in sys.argv and stale:
        print("the tables are older than the results: run make tables")
    return int(bool(stale)) if "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
