"""The 22 PyTorch programs of GRIST, a public collection of numerical bugs, as they are under `nantrap run`.

    python benchmarks/compatibility/grist.py --programs FOLDER --cache DIR [--python PYTHON] [--only ID ...]

FOLDER is a clone of the collection (github.com/Jacob-yen/GRIST). Each program looks for an input on which its own loss
is not finite, looks at the loss and exits. `grist_site` gives it random pictures in the place of MNIST. The table says
whether nantrap saw the value, the code and the line that it names, and the text of that line, to be read by people.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROGRAMS = {
    4: "test/nn/models/test_autoencoder_grist.py",
    5: "tests/test_losses_grist.py",
    12: "main_grist.py",
    13: "test/utils/test_softmax_grist.py",
    22: "My_pytorch1_grist.py",
    23: "ch5.3_softmax_grist.py",
    26: "0401_logistic_regression_grist.py",
    27: "0503_softmax_regression_cost_grist.py",
    32: "0504_softmax_regression_grist.py",
    33: "logistic_classification_grist.py",
    34: "softmax_classification_grist.py",
    37: "lab-05-1-logistic_regression_grist.py",
    38: "lab-09-1-xor_grist.py",
    46: "torch20_softmax_grist.py",
    47: "torch21_Softmax_Reg1_grist.py",
    51: "rbm_grist.py",
    53: "h02_20191644_grist.py",
    54: "h03_20191644_grist.py",
    56: "01_Logistic_Regression_grist.py",
    57: "03_softmax_cost_grist.py",
    62: "denoising_RBM_grist.py",
    63: "main_grist.py",
}


def run(
    number: int, programs: Path, cache: Path, python: str, limit: float, move: float, plant: float
) -> dict[str, Any]:
    """One program. Returns what nantrap said of it."""
    place = cache / f"ID_{number}"
    place.mkdir(parents=True, exist_ok=True)
    program = programs / "scripts" / "study_case" / f"ID_{number}" / PROGRAMS[number]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("NANTRAP_")} | {
        "PYTHONPATH": os.pathsep.join(
            [str(HERE / "grist_site"), str(program.parent), str(programs), os.environ.get("PYTHONPATH", "")]
        ),
        "GRIST_EXITS": "1",
        "GRIST_MOVE": str(move),
        "GRIST_PLANT": str(plant),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",
        "NO_COLOR": "1",
    }
    command = [python, "-m", "nantrap", "run", "--json", "--run-dir", str(place / "run"), str(program)]
    try:
        ended = subprocess.run(
            command, cwd=place, env=surroundings, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"id": number, "seen": "time limit"}
    (place / "stderr").write_text(ended.stderr)
    found = re.search(r"^error\[(NT\d+)\]: (.*)\n(?:  --> (.*?):(\d+).*\n)?", ended.stderr, flags=re.MULTILINE)
    said: dict[str, Any] = {"id": number, "exit": ended.returncode, "seen": bool(found)}
    if found is None:
        said["why"] = ended.stderr.strip().splitlines()[-1:]
        return said
    code, words, file, line = found.groups()
    said |= {"code": code, "says": words}
    if file is not None:
        said |= {
            "line": f"{Path(file).name}:{line}",
            "text": Path(file).read_text().splitlines()[int(line) - 1].strip(),
        }
    return said


def main() -> int:
    """Run what is asked for and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="a clone of the collection")
    parser.add_argument("--cache", type=Path, required=True, help="runs go here")
    parser.add_argument("--python", default=sys.executable, help="interpreter with torch, torchvision and scikit-learn")
    parser.add_argument("--only", type=int, nargs="+", default=[], help="numbers of programs")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds a program may take")
    parser.add_argument("--move", type=float, default=1.0, help="how far the search moves an input in a round")
    parser.add_argument("--plant", type=float, default=0.0, help="multiply the input by this in the first round")
    parser.add_argument("--json", type=Path, help="write everything here")
    options = parser.parse_args()
    results = []
    for number in options.only or PROGRAMS:
        places = options.programs.resolve(), options.cache.resolve()
        results.append(run(number, *places, options.python, options.limit, options.move, options.plant))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    print("| program | seen | code | line |\n| --- | --- | --- | --- |")
    for each in results:
        place = f"`{each['line']}` `{each['text']}`".replace("|", "\\|") if "line" in each else ""
        print(f"| {each['id']} | {each['seen']} | {each.get('code', '')} | {place} |")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
