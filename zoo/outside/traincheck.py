"""The healthy workloads of TrainCheck's evaluation that need one CPU: a tool must say nothing.

They are run unmodified and short. `site/sitecustomize.py` stands in for the package `traincheck`, whose marks do
nothing here, and gives random pictures in the place of MNIST. The validation text of the set is used as training text
as well. A workload that does not end within the limit was trained until then.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from zoo.outside.scripts import TOOLS, Said, run
from zoo.tools import find_tool

NAME = "TrainCheck, healthy workloads"
REPOSITORY = "github.com/OrderLab/TrainCheck-Evaluation-Workloads"
LIMIT = 60.0
SURROUNDINGS = {"ZOO_PICTURES": "10000", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
"""As many pictures as the largest loader takes; the workloads load data that they have pickled themselves."""
WORKLOADS = {
    "mnist": ["main.py", "--epochs", "3"],
    "mnist-rnn": ["main.py", "--epochs", "1"],
    "mnist-forward-forward": ["main.py", "--epochs", "2"],
    "vae": ["main.py", "--epochs", "2"],
    "regression": ["main.py"],
    "time-sequence-prediction": ["train.py", "--steps", "1"],
    "word-language-model-lstm": ["main.py", "--epochs", "1", "--tied"],
    "word-language-model-transformer": ["main.py", "--epochs", "1", "--model", "Transformer"],
}


def said_of(tool: str, name: str, clone: Path, folder: Path) -> Said:
    """What a tool said of one workload, in a copy of its folder."""
    source, place = clone / "fp_rate" / "workloads" / name, folder / tool / name
    if not place.exists():
        shutil.copytree(source, place)
        for text in place.glob("data/*/valid.txt"):  # the large text is not in every copy of the set
            shutil.copy(text, text.with_name("train.txt"))
    script, *arguments = WORKLOADS[name]
    return run(tool, place / script, arguments, place, SURROUNDINGS, LIMIT)


def measure(clone: Path, folder: Path, only: list[str]) -> dict[str, Any]:
    """The plain run and both tools on every workload."""
    rows = []
    for name in (name for name in WORKLOADS if not only or name in only):
        found = {tool: said_of(tool, name, clone, folder) for tool in ("plain", *TOOLS)}
        rows.append([f"`{name}`", *(_in_words(said) for said in found.values())])
    about = "Short unmodified runs on one CPU. The other workloads of the set need more packages, GPUs or data."
    heads = ["workload", "plain", *(find_tool(tool).about for tool in TOOLS)]
    return {"set": NAME, "repository": REPOSITORY, "about": about, "heads": heads, "rows": rows}


def _in_words(said: Said) -> str:
    if said.alarm:
        return f"alarm: {said.alarm} {said.line}"
    if said.exit is None:
        return f"no alarm in {LIMIT:g} s"
    return "no alarm, ended" if said.exit == 0 else f"did not run: {said.words[:100]}"
