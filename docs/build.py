"""`make docs`: writes docs/causes/ and docs/checks/ from the pages in src/nantrap/pages. Needs no torch.

    python docs/build.py                     the pages; the output below an example is kept as it is
    python docs/build.py --run               the same, and every example is run and its output written below it
    python docs/build.py --run NT203 NT501   only these examples are run

The pages are committed, so that they can be read where the code is; a test fails when they are out of date. An example
runs as a separate program, as a reader would run it. What is written does not depend on the machine: the folder of the
program is removed from its paths.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from running import printed

from nantrap.pages import Page, cause_pages, check_pages

CAUSES = Path(__file__).parent / "causes"
CHECKS = Path(__file__).parent / "checks"

_NOTE = "<!-- Written by docs/build.py from src/nantrap/pages. Edit the page there, then run `make docs`. -->\n\n"
_CHECKS = """# Checks

What `nantrap doctor` looks for in settings and in source code. `nantrap explain NT851` prints a page, and
`nantrap.explain("NT851")` returns it. How often each check was right on public repositories:
[doctor-precision](../doctor-precision.md).
"""
_INTRODUCTION = """# Causes

Every diagnosis of nantrap has a stable code. `nantrap explain NT203` prints its page and `nantrap.explain("NT203")`
returns it. Each example is a program that runs as it is, with its real output below it (`make outputs` runs them). A
test checks that nantrap gives each example the diagnosis of its page.
"""
_TORCH_WARNING = re.compile(r"\[[WEI]\d{4} [\d:.]+ ")  # written by torch's C++ code, with the time of day
_TORCHRUN = "# torchrun --nproc-per-node 2 "


# ---- the pages


def rendered() -> dict[str, str]:
    """Every file of docs/causes/ by name, as it should be; the outputs are those that the pages show now."""
    return _rendered({page.code: shown_output(CAUSES / f"{page.code}.md") for page in cause_pages()})


def rendered_checks() -> dict[str, str]:
    """Every file of docs/checks/ by name, as it should be."""
    return _folder(check_pages(), {page.code: page.markdown() for page in check_pages()}, _CHECKS)


def _rendered(outputs: Mapping[str, str]) -> dict[str, str]:
    return _folder(
        cause_pages(), {page.code: page.markdown(output=outputs[page.code]) for page in cause_pages()}, _INTRODUCTION
    )


def _folder(found: Sequence[Page], texts: Mapping[str, str], introduction: str) -> dict[str, str]:
    files = {f"{code}.md": _NOTE + text for code, text in texts.items()}
    index = [introduction]
    for family, members in itertools.groupby(found, key=lambda page: page.family):
        rows = [f"| [{page.code}]({page.code}.md) | `{page.slug}` | {page.title} |" for page in members]
        index.append(
            "\n".join([f"## {family.capitalize()}\n", "| code | slug | what it is |", "| --- | --- | --- |", *rows, ""])
        )
    files["index.md"] = _NOTE + "\n".join(index)
    return files


# ---- the outputs of the examples


def shown_output(path: Path) -> str:
    """The output that a page shows below its example; "" if it shows none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    found = re.search(r"^It prints:\n\n```text\n(.*?)\n```$", text, flags=re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def output_of(page: Page, folder: Path) -> str:
    """What the program of a page prints.

    Args:
        page: the page of a cause.
        folder: where the program is written and run.

    Raises:
        RuntimeError: The program failed.
    """
    program = folder / "example.py"
    program.write_text(page.program + "\n", encoding="utf-8")
    command = [sys.executable, "-W", "ignore"]  # torch's own warnings hold paths of this machine
    if page.program.startswith(_TORCHRUN):
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("NANTRAP_", "COLUMNS"))}
    done = printed([*command, program.name], folder, environment)
    if done.returncode != 0:
        raise RuntimeError(f"the example of {page.code} ended with code {done.returncode}:\n{done.stdout}")
    said = "\n".join(line for line in done.stdout.splitlines() if not _TORCH_WARNING.match(line))
    return said.replace(f"{folder.resolve()}{os.sep}", "").rstrip()


def _outputs(codes: Sequence[str]) -> dict[str, str]:
    """The output of every example: run now where its code is among `codes` or `codes` is empty, else as it is shown."""
    outputs: dict[str, str] = {}
    for page in cause_pages():
        if codes and page.code not in codes:
            outputs[page.code] = shown_output(CAUSES / f"{page.code}.md")
            continue
        sys.stdout.write(f"{page.code} {page.slug}\n")
        with tempfile.TemporaryDirectory() as folder:
            outputs[page.code] = output_of(page, Path(folder))
    return outputs


def main() -> int:
    """Write what changed, remove pages that no longer exist."""
    parser = argparse.ArgumentParser(description="Write docs/causes/ and docs/checks/.")
    parser.add_argument("--run", nargs="*", metavar="CODE", help="run the examples: all, or those of these codes")
    codes = parser.parse_args().run
    causes = rendered() if codes is None else _rendered(_outputs(codes))
    for folder, files in ((CAUSES, causes), (CHECKS, rendered_checks())):
        folder.mkdir(exist_ok=True)
        for stale in {path.name for path in folder.glob("*.md")} - files.keys():
            (folder / stale).unlink()
        for name, text in files.items():
            path = folder / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{len(files)} pages in {folder}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
