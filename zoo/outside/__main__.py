"""Runs tools on a set of programs that others wrote: python -m zoo.outside SET --clone FOLDER

Fetch the set yourself (`git clone https://REPOSITORY FOLDER`). The figures go to `zoo/results/outside.json` with the
commit of the clone, and from there into docs/benchmarks.md with `python -m zoo.tables`.

    grist           github.com/Jacob-yen/GRIST: 22 programs that look for an input on which their loss is not finite
    soft_assertion  github.com/AnwarXahid/soft-assertion-fuzzer: losses and layers of public projects
    traincheck      github.com/OrderLab/TrainCheck-Evaluation-Workloads: healthy workloads
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from zoo.outside import grist, soft_assertion, traincheck
from zoo.outside.scripts import save
from zoo.tables import table

SETS = {"grist": grist, "soft_assertion": soft_assertion, "traincheck": traincheck}


def main() -> int:
    """Measure one set, print its table and store it."""
    parser = argparse.ArgumentParser(
        prog="python -m zoo.outside", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", choices=sorted(SETS))
    parser.add_argument("--clone", type=Path, required=True, help="a clone of the set")
    parser.add_argument("--only", nargs="+", default=[], help="programs or workloads; nothing is stored then")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = SETS[arguments.set].measure(arguments.clone.resolve(), Path(folder), arguments.only)
    print(table(found["heads"], found["rows"]))
    if not arguments.only:
        save(arguments.set, arguments.clone, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
