"""How many high findings of `nantrap doctor` are true on public projects, by what a person has judged.

    cd CHECKOUT && nantrap doctor --json . > REPORTS/owner+name.json      # for every project
    python benchmarks/precision.py REPORTS [--write "NAME OF THE ROW"]

Every high finding of the reports is looked up in `doctor_judged.tsv` (repository, place, code, verdict, why); those
that nobody has judged are listed, and nothing is counted until they are. The row of the table says how many were found
and how many are true; `--write` puts it into `docs/doctor-precision.md`, in place of the row of that name. The reports
are kept, not the projects, so that what the checks said at first sight can be counted after they were changed.
"""

from __future__ import annotations

import argparse
import collections
import json
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_PAGE = _HERE.parent / "docs" / "doctor-precision.md"
_BEGIN, _END = "<!-- rows of benchmarks/precision.py -->\n", "<!-- end of the rows -->"


def judged() -> dict[tuple[str, str, str], str]:
    """`true` or `false` by repository, place (`train.py:41`) and code."""
    lines = (_HERE / "doctor_judged.tsv").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines if line]
    return {(repository, place, code): verdict for repository, place, code, verdict, _ in rows}


def row_of(folder: Path, name: str) -> str:
    """The row of a folder of reports, or an error that lists what nobody has judged."""
    verdicts = judged()
    reports = sorted(folder.glob("*.json"))
    found: list[tuple[str, str, str]] = []
    files = 0
    for path in reports:
        report = json.loads(path.read_text(encoding="utf-8"))
        files += len(report["files_read"])
        high = [each for each in report["findings"] if each["risk"] == "high"]
        found += [(path.stem, f"{each['file']}:{each['line']}", each["code"]) for each in high]
    unknown = [each for each in found if each not in verdicts]
    if unknown:
        raise SystemExit("not judged yet:\n" + "\n".join("\t".join(each) for each in unknown))
    false = collections.Counter(each[2] for each in found if verdicts[each] != "true")
    true = len(found) - false.total()
    wrong = ", ".join(f"{code} {times}" for code, times in false.most_common()) or "nothing"
    return f"| {name} | {len(reports)} | {files:,} | {len(found)} | {true} | {wrong} |\n"


def write(row: str, name: str) -> None:
    """Put a row into the page, in place of the one of the same name."""
    text = _PAGE.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    inside, after = rest.split(_END)
    rows = [line for line in inside.splitlines(keepends=True) if not line.startswith(f"| {name} |")]
    _PAGE.write_text(before + _BEGIN + "".join([*rows, row]) + _END + after, encoding="utf-8")


def main() -> None:
    """Print the row, and write it into the page if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", type=Path)
    parser.add_argument("--write", metavar="NAME")
    arguments = parser.parse_args()
    row = row_of(arguments.reports, arguments.write or arguments.reports.name)
    print(row, end="")
    if arguments.write:
        write(row, arguments.write)


if __name__ == "__main__":
    main()
