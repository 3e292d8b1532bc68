"""`make matrix`: the tests on every Python and torch that this machine has or can get.

The first run takes gigabytes: torch for another Python than 3.11, and every older torch, comes with its CUDA
packages (it runs on the CPU all the same). One combination: `nox -s "tests(python='3.10', torch='2.6.0')"`.
The results, with their date, are in docs/compatibility.md.
"""

from __future__ import annotations

import os
from pathlib import Path

import nox

# Pythons that pyenv keeps are not on the PATH; those of the system are.
for folder in sorted(Path.home().glob(".pyenv/versions/*/bin")):
    os.environ["PATH"] += os.pathsep + str(folder)

nox.options.error_on_missing_interpreters = False
nox.options.reuse_existing_virtualenvs = True

MATRIX = [
    ("3.10", "2.6.0"),
    ("3.10", "2.13.0"),
    ("3.11", "2.9.1"),
    ("3.11", "2.13.0"),
    ("3.11", "2.15.0"),
    ("3.12", "2.13.0"),
    ("3.13", "2.13.0"),
    ("3.14", "2.13.0"),
]
"""The oldest supported torch on the oldest Python, one torch in between, the newest, and every Python in between."""

EXTRAS = "accelerate,data,plot,watch,serve,completion,remote"
"""Without Lightning and transformers: their tests are skipped here and run by `make test`."""


@nox.session
@nox.parametrize(("python", "torch"), MATRIX)
def tests(session: nox.Session, torch: str) -> None:
    """The default tests, without the frameworks, on one Python and one torch."""
    session.install("pip>=25.1", f"torch=={torch}")
    session.install("-e", f".[{EXTRAS}]", "-e", "systems", "--group", "test")
    arguments = session.posargs or ["-n", "2", "--dist", "loadfile"]
    session.run("python", "-m", "pytest", "-q", *arguments, env={"OMP_NUM_THREADS": "1"})
