"""Runs a tool on the zoo: python -m zoo --tool NAME [FAMILY | COLLECTION | NAME ...]

Every program runs in a process of its own with a time limit, to its end, and the tool's first alarm is compared with
the program's truth. A tool is a name of `zoo/tools`, or a file of your own with `TOOLS` in it. Printed are, over the
failing programs: how many were noticed, at the right step, at the right place as far as the tool names one, at the
right place with phase, module and operation, at the right line, with the right best cause, among the first three,
called proven; proofs of a wrong cause, sentences that are false, repairs that were tried; then false alarms on healthy
programs, and of all programs those whose weights and optimizer state are finite at the end, and those that made every
step as well. Times from the beginning of the failed step to the answer are in seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from zoo import cost, isolated, results
from zoo.judging import Answer, Tally
from zoo.loading import CONTROLS, ZOO, collections, families, find, is_held_back, is_script, manifest, sample
from zoo.running import Tool
from zoo.tools import find_tool, tools

HEADS = (
    "noticed", "step", "place", "full", "line", "cause", "of three", "proven", "false", "untrue", "tried", "alarms",
    "finite", "usable", "median s", "worst",
)  # fmt: skip


def row(tally: Tally) -> list[str]:
    """The figures of a tally, in the order of the heads."""
    found = tally.counts()
    of = found["programs"]
    shares = [f"{found[name]}/{of}" for name in ("found", "step", "place", "full_place")]
    shares.append(f"{found['line']}/{found['lines']}")
    shares += [f"{found[name]}/{of}" for name in ("cause", "among_three")]
    shares += [str(found[name]) for name in ("proven", "false_proofs", "false_sentences", "verified_fixes")]
    shares.append(f"{found['false_alarms']}/{found['controls']}")
    shares += [f"{found[name]}/{found['ended']}" for name in ("finite_at_the_end", "usable_at_the_end")]
    return [*shares, f"{found.get('median_seconds', 0):.3f}", f"{found.get('worst_seconds', 0):.2f}"]


def show(title: str, tally: Tally, *, name_misses: bool) -> None:
    """A table of one line, and what was missed."""
    cells = row(tally)
    widths = [max(len(head), len(cell)) + 2 for head, cell in zip(HEADS, cells, strict=True)]
    print(f"\n{title}: {len(tally.answers)} programs")
    print("".join(f"{head:>{width}}" for head, width in zip(HEADS, widths, strict=True)))
    print("".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)))
    for kind in ("false_proofs", "false_sentences", "misses") if name_misses else ():
        for line in getattr(tally, kind):
            print(f"  {kind.replace('_', ' ')}: {line}")
    for answer in tally.controls if name_misses else ():
        if answer.found or answer.raised:
            print(f"  false alarm: {answer.program}: {answer.said}")


def run(tool_name: str, names: list[str], arguments: argparse.Namespace) -> dict[Path, Answer]:
    """The answers of a tool on the programs of these names; whole scripts are for those that can run them."""
    named = find(*names)
    chosen = [path for path in named if hasattr(find_tool(tool_name), "run_script") or not is_script(path)]
    if len(chosen) < len(named):
        print(f"{tool_name} cannot run whole scripts: {len(named) - len(chosen)} are left out", file=sys.stderr)
    if arguments.missing:
        stored = results.read(results.RESULTS / f"{find_tool(tool_name).name}.json").get("programs", {})
        chosen = [path for path in chosen if path.relative_to(ZOO).as_posix() not in stored]
    by_stem = {path.stem: path for path in (sample(chosen, arguments.sample) if arguments.sample else chosen)}
    found = {}
    lines = arguments.lines.open("a", encoding="utf-8") if arguments.lines else None
    for answer in isolated.answers(tool_name, by_stem.values(), jobs=arguments.jobs, seconds=arguments.seconds):
        found[by_stem[answer.program]] = answer
        if lines is not None and not is_held_back(by_stem[answer.program]):
            lines.write(json.dumps(dataclasses.asdict(answer)) + "\n")
            lines.flush()
        if arguments.save and len(found) % 50 == 0:
            results.save(find_tool(tool_name), found, _named(names, arguments))
    if lines is not None:
        lines.close()
    return found


def _named(names: list[str], arguments: argparse.Namespace) -> list[str]:
    options = [f"--sample {arguments.sample}"] if arguments.sample else []
    return [*options, *(["--missing"] if arguments.missing else []), *names]


def label_to_freeze(tool: Tool, name: str) -> str:
    """The form of a tool in the manifest, which must not have a first measurement on this collection yet."""
    label = {"nantrap_attempt": "attempt", "nantrap_two_lines": "two lines"}.get(tool.name, tool.name)
    if name not in collections():
        raise ValueError(f"{name} is no collection, so it has no first measurement")
    if label in (manifest()["collections"][name]["first_measurement"] or {}):
        raise ValueError(f"{name} has a first measurement of {label}; it is frozen")
    return label


def freeze(tool: Tool, name: str, found: list[Answer]) -> None:
    """Write the first measurement of a tool on a collection into the manifest."""
    path = ZOO / "manifest.json"
    text = json.loads(path.read_text(encoding="utf-8"))
    first = text["collections"][name]["first_measurement"] or {}
    first = {"date": results.today(), "commit": results.commit_of(ZOO), **first}
    left_out = ("seconds", "place") if any(answer.place is None for answer in found) else ("seconds",)
    counts = Tally(found).counts()
    label = label_to_freeze(tool, name)
    first[label] = {k: v for k, v in counts.items() if not any(part in k for part in left_out)}
    text["collections"][name]["first_measurement"] = first
    path.write_text(as_text(text), encoding="utf-8")


def as_text(manifest: dict[str, Any]) -> str:
    """The manifest as it is stored: one line for each program and each measured form."""

    def lines(table: dict[str, Any], depth: int, levels: int) -> str:
        pad = "  " * depth
        rows = (
            f"{pad}  {json.dumps(key)}: "
            + (lines(value, depth + 1, levels - 1) if isinstance(value, dict) and levels else _line(value))
            for key, value in table.items()
        )
        return "{\n" + ",\n".join(rows) + f"\n{pad}}}"

    levels = {"families": -1, "collections": 2, "programs": 0}
    parts = (
        f"  {json.dumps(key)}: {lines(value, 1, levels[key]) if levels[key] >= 0 else _line(value)}"
        for key, value in manifest.items()
    )
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", help="families, controls, scripts, collections or programs (default: all programs)"
    )
    parser.add_argument("--tool", action="append", help="a name, or FILE.py; several may be given")
    parser.add_argument("--list", action="store_true", help="list the tools")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    parser.add_argument("--lines", type=Path, help="append one JSON line per program, with what was said")
    parser.add_argument("--save", action="store_true", help="write zoo/results/TOOL.json")
    parser.add_argument("--sample", type=int, metavar="N", help="about N of the programs, each family in its share")
    parser.add_argument("--missing", action="store_true", help="only programs of which no result is stored")
    parser.add_argument("--freeze", action="store_true", help="write first measurements of collections")
    parser.add_argument("--cost", action="store_true", help="measure the cost of a healthy step instead")
    parser.add_argument("--pairs", type=int, default=15, help="pairs of runs of --cost (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time; times need 1 (default: %(default)s)")
    parser.add_argument("--seconds", type=float, help=f"limit of one program (default: {isolated.SECONDS})")
    arguments = parser.parse_args()
    if arguments.list or not arguments.tool:
        for name, tool in tools().items():
            print(f"{name:26} {tool.about}")
        return 0 if arguments.list else 2
    chosen: dict[str, Tool] = {}
    try:
        chosen = {name: find_tool(name) for name in arguments.tool}
        find(*arguments.names)
        for each in (arguments.names or ["every program"]) if arguments.freeze else ():
            for tool in chosen.values():
                label_to_freeze(tool, each)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    figures: dict[str, Any] = {}
    for name, tool in chosen.items():
        if missing := results.missing(tool):
            print(f"error: {tool.name} needs the package {', '.join(missing)}", file=sys.stderr)
            return 2
        if arguments.cost:
            figures[tool.name] = cost.measure(tool, arguments.pairs)
            if not arguments.json:
                print("\n".join(cost.lines(tool, figures[tool.name])), flush=True)
            if arguments.save:
                command = f"python -m zoo --save --cost --tool {tool.name}"
                results.save_parts(results.COSTS, {tool.name: figures[tool.name]}, command, results.packages_of(tool))
            continue
        if not isolated.is_possible():
            print("error: programs are run in forked processes, which this system does not have", file=sys.stderr)
            return 2
        found = run(name, arguments.names, arguments)
        if arguments.save:
            results.save(tool, found, _named(arguments.names, arguments))
        figures[tool.name] = Tally(list(found.values())).counts()
        for each in arguments.names or (*families(), CONTROLS):
            part = find(each)
            tally = Tally([found[path] for path in part if path in found])
            if not arguments.json and tally.answers:
                show(f"{tool.name}, {each}", tally, name_misses=not any(map(is_held_back, part)))
            if arguments.freeze:
                freeze(tool, each, tally.answers)
    if arguments.json:
        print(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
