"""The subjects of Soft Assertion that are PyTorch code and can become non-finite: losses and layers of public projects.

Each file of the set returns before its unsafe operation, so that a fuzzer can look at the operand. Those returns are
taken out, which restores the code of the project, and a small model is trained through it. One batch holds the kind of
input that the subject cannot stand: rewards far apart, a picture of one pixel, values of 1e20. The other subjects are
NumPy, scikit-learn, Keras or TensorFlow (10, 12 to 15), or stay finite (2, 3, 5). A person read the line that is right.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

from zoo.outside.scripts import Said, judged, run

LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Subject:
    """One subject: its file, a part of its guilty line, and the lines that make a model and compute its loss."""

    file: str
    guilty: str
    setup: str
    loss: tuple[str, ...]


_LINEAR = "model = torch.nn.Linear(8, 4)"
PROGRAMS = {
    1: Subject(
        "ID_1/CondINorm_01_rsqrt.py", "var = x_reshaped.var(",
        "norm = subject.CondINorm(4, 2); model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), norm)",
        ("size = 1 if bad else 8",
         "x, condition = torch.randn(2, 3, size, size), torch.randn(2, 2, size, size)",
         "loss = norm(model[0](x), condition).square().mean()"),
    ),
    4: Subject(
        "ID_4/policy_loss_02_exp.py", "ratio = (new_actor_log_probs -", f"policy = subject.PolicyLoss(); {_LINEAR}",
        ("new = model(torch.randn(16, 8)).log_softmax(-1)",
         "old = new.detach() - (100 if bad else 0)",
         "loss = policy(new, old, -torch.rand(16, 4), None)"),
    ),
    6: Subject(
        "ID_6/github_code_06_relu.py", "distance_positive = (anchor - positive).pow(2).sum(1)",
        f"triplet = subject.TripletLoss(1.0); {_LINEAR}",
        ("x = torch.randn(3, 16, 8) * (1e20 if bad else 1)", "loss = triplet(*model(x))"),
    ),
    7: Subject(
        "ID_7/github_code_07.py", "log_probs = torch.log(probs)",
        "pairs = subject.PairWiseLoss(); model = torch.nn.Linear(8, 1)",
        ("chosen, rejected = model(torch.randn(2, 16, 8))", "loss = pairs(chosen - (200 if bad else 0), rejected)"),
    ),
    8: Subject(
        "ID_8/github_code_08.py", "logits = torch.matmul(x, y.transpose(0, 1))",
        f"contrast = subject.SimpleContrastiveLoss(); {_LINEAR}",
        ("x, y = model(torch.randn(2, 16, 8) * (1e20 if bad else 1))", "loss = contrast(x, y)"),
    ),
    9: Subject(
        "ID_9/github_code_09.py", "'educlidean': lambda x, y: F.pairwise_distance",
        f"triplet = subject.TripletLoss(); {_LINEAR}",
        ("x = torch.randn(3, 16, 8) * (1e20 if bad else 1)", "loss = triplet(*model(x))"),
    ),
    11: Subject(
        "ID_11_1_2/source_code.py", "P /= P.sum()", f"solver = subject.OTSolver(win_size=1); {_LINEAR}",
        ("x, y = model(torch.randn(2, 5, 8))",
         "cost = solver.pairwise_distances(x * (100 if bad else 1), y)",
         "with torch.no_grad(): plan, _ = solver.compute_optimal_transport(cost)",
         "loss = (plan * cost).sum()"),
    ),
}  # fmt: skip
ABOUT = {
    "set": "Soft Assertion",
    "repository": "github.com/AnwarXahid/soft-assertion-fuzzer",
    "about": f"Subjects {', '.join(map(str, PROGRAMS))}, trained through with one planted batch"
    " (`zoo/outside/soft_assertion.py`).",
}
_TRAIN = """\
import torch

import subject

torch.manual_seed(0)
{setup}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(6):
    bad = step == 3
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
"""


def restored(text: str) -> str:
    """The code of the project: what was inserted for the fuzzer becomes empty lines."""
    lines, inside = [], False
    for line in text.splitlines():
        mark = re.match(r"\s*##\s*insert(ed)? code", line, flags=re.IGNORECASE) is not None
        lines.append("" if mark or inside else line)
        inside ^= mark
    return "\n".join(lines) + "\n"


def said_of(tool: str, number: int, clone: Path, folder: Path) -> tuple[Said, bool]:
    """What a tool said of the training through one subject, and whether the line that it named is the right one."""
    subject = PROGRAMS[number]
    place = folder / f"ID_{number}"
    place.mkdir(parents=True, exist_ok=True)
    code = restored((clone / "scripts" / subject.file).read_text(encoding="utf-8"))
    (place / "subject.py").write_text(code, encoding="utf-8")
    script = _TRAIN.format(setup=subject.setup, loss="\n    ".join(subject.loss))
    (place / "train.py").write_text(script, encoding="utf-8")
    said = run(tool, place / "train.py", [], place, {}, LIMIT)
    name, _, line = said.line.partition(":")
    named = "\n".join(code.splitlines()[int(line) - 1 : int(line) + 1]) if name == "subject.py" else ""
    return said, subject.guilty in named


measure = functools.partial(judged, ABOUT, PROGRAMS, said_of)
