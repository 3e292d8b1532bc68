"""How well failures are explained: the best cause, proofs, verified fixes, seconds.

    python benchmarks/explain.py [FOLDER ...]   default: all parts of the zoo in tests

Every program knows its own cause. `tests/zoo`, `zoo_more`, `zoo_third` and `zoo_traps` were looked at while the rules
were written; `tests/zoo_held_back` was not, so its figures are the honest ones. A false proof is a cause that is called
proven and is not the true one, at any rank: there must be none. A false sentence is one that the program's truth lists
as false of it (`never_said`), found anywhere in the incident.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from programs import batches, load, loss_function

import nantrap

ROOT = Path(__file__).resolve().parent.parent
_EITHER = {"bn_buffers_poisoned": {"bn_buffers_poisoned", "fp16_forward_overflow"}}
"""Two names for one fault: the buffer that was poisoned, and what poisoned it."""


@dataclass
class Tally:
    """What one form did over all programs of a folder."""

    bugs: int = 0
    first: int = 0
    among_three: int = 0
    proven: int = 0
    false_proofs: list[str] = field(default_factory=list)
    false_sentences: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    verified: int = 0
    controls: int = 0
    false_alarms: int = 0
    seconds: list[float] = field(default_factory=list)


def judge(path: Path, form: str, tally: Tally) -> None:
    """Run one program up to its first incident and compare."""
    case = load(path)
    truth = case["truth"]
    compute = loss_function(case)
    guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, quiet=True)
    incident, took = None, 0.0
    for batch in batches(case):
        begin = time.perf_counter()
        if form == "attempt":
            incident = guard.attempt(compute, batch).incident
        else:
            guard.backward(compute(batch))
            incident = guard.step().incident
        took = time.perf_counter() - begin
        if incident is not None:
            break
    if truth["cause"] in (None, "benign"):
        tally.controls += 1
        tally.false_alarms += incident is not None
        return
    tally.bugs += 1
    if incident is None:
        return
    tally.seconds.append(took)
    accepted = _EITHER.get(truth["cause"], {truth["cause"]}) | set(truth.get("also", ()))
    slugs = [cause.slug for cause in incident.causes]
    right = bool(slugs) and slugs[0] in accepted
    tally.first += right
    tally.among_three += bool(accepted & set(slugs[:3]))
    best = incident.causes[0] if incident.causes else None
    tally.proven += bool(right and best is not None and best.proven)
    if not right:
        tally.misses.append(f"{path.stem}: {', '.join(slugs[:3])}")
    wrong = [cause.slug for cause in incident.causes if cause.proven and cause.slug not in accepted]
    tally.false_proofs += [f"{path.stem}: {slug}" for slug in wrong[:1]]
    said = "\n".join(sentences(incident))
    tally.false_sentences += [f"{path.stem}: {text!r}" for text in truth.get("never_said", ()) if text in said]
    tally.verified += bool(best is not None and best.fix is not None and best.fix.verified)


def sentences(incident: nantrap.Incident) -> Iterator[str]:
    """Every sentence of an incident that claims something about its cause."""
    yield from incident.notes
    for cause in incident.causes:
        yield cause.summary
        yield from (evidence.text for evidence in cause.evidence)
        if cause.fix is not None:
            yield cause.fix.text


def measure(folder: Path, *, name_misses: bool) -> None:
    """Both forms over one folder."""
    sys.path.insert(0, str(folder))
    paths = sorted(folder.glob("[0-9][0-9]_*.py"))
    print(f"\n{folder.name}: {len(paths)} programs")
    heads = (
        ("first", 9),
        ("of three", 10),
        ("proven", 9),
        ("false", 7),
        ("untrue", 8),
        ("verified", 10),
        ("alarms", 9),
    )
    heads += (("median s", 10), ("worst", 7))
    print(" " * 12 + "".join(f"{head:>{width}}" for head, width in heads))
    for form in ("attempt", "two lines"):
        tally = Tally()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for path in paths:
                judge(path, form, tally)
        print(
            f"{form:12}{f'{tally.first}/{tally.bugs}':>9}{f'{tally.among_three}/{tally.bugs}':>10}{tally.proven:>9}"
            f"{len(tally.false_proofs):>7}{len(tally.false_sentences):>8}{tally.verified:>10}{f'{tally.false_alarms}/{tally.controls}':>9}"
            f"{statistics.median(tally.seconds):>10.3f}{max(tally.seconds):>7.2f}"
        )
        for title in ("false_proofs", "false_sentences", "misses") if name_misses else ():
            for line in getattr(tally, title):
                print(f"  {title.replace('_', ' ')}: {line}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    defaults = [
        ROOT / "tests" / name for name in ("zoo", "zoo_more", "zoo_third", "zoo_traps", "zoo_blind", "zoo_held_back")
    ]
    for folder in arguments.folders or defaults:
        measure(folder.resolve(), name_misses=folder.name != "zoo_held_back")


if __name__ == "__main__":
    main()
