"""The pages of the causes: what `nantrap explain NT203` prints and `docs/causes/` holds. Needs no torch.

A page is the docstring of its rule in the format of `causes/page_format.py`, with the sections Example, Why, Fix and
Proof. The example defines `model`, `optimizer`, `batches`, `loss_fn(batch)` and, where the cause needs more than a
plain guard, `guard`. The page shows it as a program that runs as it is: see `Page.program`. A test runs it.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from nantrap.causes.page_format import fenced, markdown_text, parse_page, plain_text
from nantrap.errors import UsageError
from nantrap.incident import BY_CODE, BY_SLUG, Code

SECTIONS: Final = ("example", "why", "fix", "proof")

FAMILIES: Final = MappingProxyType(
    {
        "NT0": "unknown",
        "NT1": "data",
        "NT2": "forward maths",
        "NT3": "backward maths",
        "NT4": "precision",
        "NT5": "optimisation",
        "NT6": "state",
        "NT7": "distributed and platform",
    }
)
"""The first three characters of a code, and what its family is called."""

_LOOP: Final = ("for batch in batches:", "    if guard.attempt(loss_fn, batch).incident:", "        break")


@dataclass(frozen=True, slots=True)
class Page:
    """One cause, explained. `what`, `why`, `fix` and `proof` are prose with indented code; `example` is a program."""

    code: str
    slug: str
    title: str
    what: str
    example: str
    why: str
    fix: str
    proof: str

    @property
    def family(self) -> str:
        """`forward maths` for `NT203`."""
        return FAMILIES[self.code[:3]]

    @property
    def program(self) -> str:
        """The example as a whole program: the same random numbers each time, and a guarded loop over its batches."""
        lines = self.example.splitlines()
        last = max(index for index, line in enumerate(lines) if line.startswith(("import ", "from ")))
        imports, body = lines[: last + 1], lines[last + 1 :]
        if "import nantrap" not in imports:
            imports.append("import nantrap")
        if "torch.manual_seed(0)" not in body:
            body[1:1] = ["torch.manual_seed(0)", *([""] if body[1].startswith(("def", "class", "@")) else [])]
        if not any(line.startswith("guard = ") for line in body):
            body += ["", "guard = nantrap.Guard(model, optimizer)"]
        elif body[-1].startswith(" "):
            body.append("")
        return "\n".join([*imports, *body, *_LOOP])

    def text(self) -> str:
        """The page as plain text, as it reads in a terminal."""
        return plain_text(f"{self.code} {self.slug}: {self.title}", self.what, self._bodies(example=self.program))

    def markdown(self, *, output: str = "") -> str:
        """The page as Markdown, code in fences.

        Args:
            output: what the program prints; shown below it.
        """
        headings = (f"# {self.code}: {self.title}", f"`{self.slug}` · {self.family}")
        example = fenced(self.program, "python")
        if output:
            example += f"\n\nIt prints:\n\n{fenced(output, 'text')}"
        return markdown_text(headings, self.what, self._bodies(example=example))

    def _bodies(self, *, example: str) -> dict[str, str]:
        return {"Example": example, "Why": self.why, "Fix": self.fix, "Proof": self.proof}


_OF_CHECKPOINTS = frozenset(f"NT{number}" for number in range(901, 914))
"""The codes of `nantrap audit`, which a test compares with its own table."""


def page(code_or_slug: str) -> Page:
    """The page of a cause.

    Args:
        code_or_slug: `NT203`, or `softmax_fully_masked_row`; case and `-` for `_` do not matter.

    Raises:
        UsageError: There is no such cause; the message names those that are spelt alike.
    """
    wanted = code_or_slug.strip()
    slug = wanted.lower().replace("-", "_").replace(" ", "_")
    entry = BY_CODE.get(wanted.upper()) or BY_SLUG.get(slug)
    if entry is None and wanted.upper() in _OF_CHECKPOINTS:
        raise UsageError(
            f"{wanted.upper()} is a problem of a checkpoint file, not a cause of a failed step; `nantrap audit` "
            "prints what it means and what to do"
        )
    if entry is None:
        raise UsageError(_no_such_cause(code_or_slug))
    return _parsed(entry, _docstring(entry))


def pages() -> tuple[Page, ...]:
    """Every page, by code."""
    return tuple(page(code) for code in sorted(BY_CODE))


def _docstring(entry: Code) -> str:
    if entry.slug == "unknown":  # no rule recognises it: it is what remains
        return _UNKNOWN
    from nantrap.causes import rules as _rules  # noqa: F401  (registers them)
    from nantrap.causes.registry import RULES

    return RULES[entry.slug].page


def _parsed(entry: Code, docstring: str) -> Page:
    parsed = parse_page(docstring, slug=entry.slug, sections=SECTIONS)
    return Page(entry.code, entry.slug, parsed.title, parsed.what, **parsed.sections)


def _no_such_cause(given: str) -> str:
    known = [*BY_CODE, *BY_SLUG]
    form = given.strip().upper() if given.strip()[:2].upper() == "NT" else given.strip().lower().replace("-", "_")
    near = difflib.get_close_matches(form, known, n=3, cutoff=0.6)
    near += [slug for slug in BY_SLUG if len(form) > 2 and form in slug and slug not in near][: 3 - len(near)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no cause {given!r}; {hint}`nantrap explain` lists every code and slug"


_UNKNOWN: Final = """No cause could be established.

The step failed, and neither a measurement nor a trial explains why. Everything that was measured is shown: the phase,
the first operation that made non-finite values, its line, the magnitudes on the way, the findings. A guess would not
add anything.

Example:
    import torch

    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.randn(4, 3), torch.zeros(4, 3)]

    def loss_fn(batch):
        counts = batch.abs().sum(-1)
        return (model(batch).squeeze(-1) * torch.lgamma(counts)).mean()  # lgamma(0) is +Inf

Why:
    Rules know the operations and histories that fail most often. An operation none of them knows, a two-line loop
    that cannot be run again, a failure that did not repeat in the replay, or a budget that was used up leave it
    open.

Fix:
    Give nantrap more to work with:

        - guard.backward(loss_fn(model, batch)); guard.step()
        + guard.attempt(lambda batch: loss_fn(model, batch), batch)

    `guard.attempt` can run the step again, so that trials become possible. `nantrap.probe("name", tensor)` inside
    the model narrows the place down. `Policy(diagnose_seconds=300)` allows more trials. Meanwhile the step is
    skipped and the weights are as before.

Proof:
    None. The evidence says what was missing, and the incident lists what was refuted.
"""
