"""Scripts that evaluate or generate under `nantrap run`: what is reported, and that nothing of the script changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from nantrap import health, record

VALIDATION = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        scale = torch.log(x[:, :1])
        return self.b(torch.relu(self.a(x))) / (2 + scale * scale)

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
x, y = torch.rand(64, 8) + 0.1, torch.randint(0, 4, (64,))
xv, yv = torch.rand(40, 8) + 0.1, torch.randint(0, 4, (40,))
if "bad" in sys.argv:
    xv[29, 0] = -1.0
train = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(xv, yv), batch_size=8)
for epoch in range(2):
    model.train()
    for a, b in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
    model.eval()
    total = 0
    with torch.no_grad():
        for a, b in valid:
            total += nn.functional.cross_entropy(model(a), b).item()
    print(epoch, loss.item(), total, torch.rand(1).item())
"""

GENERATION = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)

class LM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.query, self.head = nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11)
    def forward(self, ids, mask):
        x = self.embed(ids)
        scores = (self.query(x) @ x.transpose(1, 2)).masked_fill(~mask[:, None, :], float("-inf"))
        return self.head(torch.softmax(scores, -1) @ x)

model = LM().eval()
ids, mask = torch.randint(0, 11, (3, 5)), torch.ones(3, 5, dtype=torch.bool)
mask[2] = "bad" not in sys.argv
with torch.inference_mode():
    for _ in range(4):
        logits = model(ids, mask)[:, -1]
        top = logits.topk(3).values[:, -1:]
        logits = logits.masked_fill(logits < top, float("-inf"))
        ids = torch.cat([ids, torch.multinomial(torch.softmax(logits, -1), 1)], 1)
        mask = torch.cat([mask, mask[:, :1]], 1)
best = torch.tensor(float("inf"))
print(ids.tolist(), best.item(), torch.rand(1).item())
"""


TEMPERATURE = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)

model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 11)).eval()
ids, temperature = torch.randint(0, 11, (3, 5)), 0.0 if "bad" in sys.argv else 0.7
with torch.inference_mode():
    for _ in range(4):
        logits = model(ids)[:, -1]
        scaled = logits / temperature
        probs = torch.softmax(scaled, -1)
        count = 0 if "mistake" in sys.argv else 1
        ids = torch.cat([ids, torch.multinomial(probs, count)], 1)
print(ids.tolist())
"""

SAMPLER = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
    def forward(self, x, t):
        return self.a(x) * torch.sqrt(1.0 - t)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.unet, self.decoder = UNet(), nn.Linear(8, 4)
    def forward(self, x, t):
        return self.decoder(self.unet(x, t)).square().mean()
    @torch.no_grad()
    def sample(self, last):
        z = torch.randn(3, 8)
        for t in (0.0, 0.5, last):
            z = z - 0.1 * self.unet(z, torch.full((3, 1), t))
        return self.decoder(z)

model = Model()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(3):
    model.train()
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.rand(6, 8), torch.rand(6, 1))
        loss.backward()
        optimizer.step()
    model.eval()
    print(epoch, loss.item(), model.sample(2.0 if epoch == 1 and "bad" in sys.argv else 1.0).sum().item())
"""

SCRIPTED = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
    def forward(self, x):
        return torch.sqrt(self.linear(x) + 3.0)

model = torch.jit.trace(Net().eval(), torch.rand(2, 4))
x = torch.rand(8, 4)
if "bad" in sys.argv:
    x[5] = -100.0
with torch.no_grad():
    for rows in x.split(4):
        print(model(rows).sum().item())
"""


OWN_CODE = """
import sys, torch
from torch import nn
torch.manual_seed(0); torch.set_num_threads(1)
where = sys.argv[1] if len(sys.argv) > 1 else ""

class Diffusion(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)
        self.register_buffer("noise", torch.tensor([0.0 if where in ("method", "block") else 0.1, 0.2, 0.3]))
    def forward(self, x):
        return (self.net(x) - x).square().mean()
    @torch.no_grad()
    def denoised(self, x, t):
        return x - self.net(x) * self.noise[t] / self.noise[t].sqrt()
    @torch.inference_mode()
    def sample(self):
        x = torch.randn(3, 4)
        for t in (2, 1, 0):
            x = self.denoised(x, t)
        return x
    @torch.no_grad()
    def generate(self, ids, temperature, known=None):
        for _ in range(3):
            scores = self.net(ids[:, -4:].float()) / temperature
            if known is not None:
                scores[known] = 0.0
            ids = torch.cat([ids, torch.multinomial(torch.softmax(scores, -1), 1)], 1)
        return ids

def in_a_block(model):
    with torch.no_grad():
        lowest, masked = torch.full((3,), float("inf")), model.net(torch.ones(3, 4))
        x = torch.randn(3, 4)
        for t in (2, 1, 0):
            eps = model.net(x)
            x = x - eps * model.noise[t] / model.noise[t].sqrt()
            if t > 0:
                x = x + 0.1 * torch.randn(3, 4)
        masked = masked.masked_fill(masked < 0, float("-inf"))
        shares = torch.zeros(3) / torch.tensor([1.0, 0.0, 2.0])
    return x.sum().item(), shares.nanmean().item(), lowest.numel(), masked.numel()

model = Diffusion()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for epoch in range(2):
    model.train()
    optimizer.zero_grad()
    model(torch.rand(6, 4)).backward()
    optimizer.step()
    model.eval()
    if where != "block":
        print(model.sample().sum().item())
    if where != "method":
        print(in_a_block(model))
    print(torch.rand(1).item())
print(model.generate(torch.ones(2, 4, dtype=torch.long), 0.0 if where == "raised" else 0.7).tolist())
"""
OF_OWN_CODE = {
    "method": (
        "error[NT202]",
        "--> script.py:16 in Diffusion.denoised",
        "sample 0",
        "after 1 call of the model",
        "2 ×",
    ),
    "block": ("error[NT202]", "--> script.py:38 in in_a_block", "without gradients left x[0, 0]", "2 ×"),
    "raised": ("error[NT202]", "--> script.py:26 in Diffusion.generate", "after 1 call of the model", "1 ×"),
}
"""What is said of what a method of the model makes, a block without gradients, and a line that raises an error."""


class Done(NamedTuple):
    """How a script ended: its exit code, and what it and nantrap printed."""

    code: int
    out: str
    said: str


def run(folder: Path, text: str, *arguments: str, options: tuple[str, ...] = (), plain: bool = False) -> Done:
    script = folder / "script.py"
    script.write_text(text, encoding="utf-8")
    guard = [] if plain else ["-m", "nantrap", "run", "--run-dir", str(folder / "run"), *options]
    command = [sys.executable, *guard, str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=folder)
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("text", [VALIDATION, GENERATION, TEMPERATURE, SAMPLER, SCRIPTED, OWN_CODE])
def test_healthy(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, text)
    assert done.code == 0
    assert done.out == run(tmp_path, text, plain=True).out
    assert "in evaluations" not in done.said
    assert "in inference" not in done.said
    assert list(tmp_path.glob("run/**/incident.json")) == []


def test_a_validation_sample(tmp_path: Path) -> None:
    done = run(tmp_path, VALIDATION, "bad")
    assert done.code == 0
    assert done.out == run(tmp_path, VALIDATION, "bad", plain=True).out
    assert "nantrap: evaluation after 4 steps; " in done.said
    assert "error[NT208]: log was given -1" in done.said
    assert "validation batch 3" in done.said
    assert "sample: 5 (dataset index 29)" in done.said
    assert "nothing: the run goes on with this value" in done.said
    assert "8 steps, 8 applied (100.0 %), 0 incidents" in done.said
    assert "2 incidents in evaluations: 2 × domain_error" in done.said
    judged = health.judge(record.open_run(tmp_path / "run"))
    said = {found.code: found.message for found in judged.findings}
    assert said["incidents_apart"] == "2 incidents in evaluations: 2 × domain_error"
    assert said["incidents"] == "no incident"
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "2 incidents in evaluations" in page


def test_a_generation_that_torch_multinomial_ends(tmp_path: Path) -> None:
    done = run(tmp_path, GENERATION, "bad")
    assert done.code == 1
    assert "probability tensor contains either `inf`, `nan` or element < 0" in done.said
    assert "nantrap: inference\n" in done.said
    assert "error[NT203]: softmax over a row in which every position is masked" in done.said
    assert "sample: 2" in done.said
    assert "1 incident in inference: 1 × softmax_fully_masked_row" in done.said
    assert "nothing was guarded" not in done.said


def test_a_part_of_the_model_that_a_sampler_calls(tmp_path: Path) -> None:
    done = run(tmp_path, SAMPLER, "bad")
    assert done.out == run(tmp_path, SAMPLER, "bad", plain=True).out
    assert "nantrap: evaluation after 4 steps\n" in done.said
    assert "error[NT208]: sqrt was given -1" in done.said
    assert "--> script.py:11 in UNet.forward" in done.said
    assert "2 × domain_error" in done.said  # the decoder was given what the other part made


WRITES = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(4, 4)
noise, made = torch.tensor([0.0, 0.2]), []

class Sampler:
    drawn = 0

@torch.no_grad()
def sample(count, path):
    x = torch.randn(count, 4)
    for t in (1, 0):
        x = x - net(x) * noise[t] / noise[t].sqrt()
    Sampler.drawn += count
    with open(path, "a") as file:
        file.write("x")
    return x

optimizer = torch.optim.SGD(net.parameters(), 1e-3)
net(torch.ones(2, 4)).mean().backward()
optimizer.step()
net.eval()
print(sample(3, "drawn.txt").sum().item(), Sampler.drawn, open("drawn.txt").read())
"""


def test_a_function_that_writes_a_file_is_not_run_a_second_time(tmp_path: Path) -> None:
    done = run(tmp_path, WRITES)
    assert done.out == "nan 3 x\n"
    assert "sample made it after 2 calls of the model" in done.said


@pytest.mark.parametrize("where", OF_OWN_CODE)
def test_what_the_program_makes_of_finite_outputs(tmp_path: Path, where: str) -> None:
    done = run(tmp_path, OWN_CODE, where, options=("--verbose",))
    assert done.out == run(tmp_path, OWN_CODE, where, plain=True).out
    for words in OF_OWN_CODE[where]:
        assert words in done.said, done.said
    assert "division by" in done.said


def test_a_line_that_was_given_what_no_model_made(tmp_path: Path) -> None:
    """The model's output is finite, and the temperature is 0."""
    done = run(tmp_path, TEMPERATURE, "bad")
    assert done.code == 1
    assert "error[NT202]: a division by the constant 0 in the program's own code" in done.said
    assert "scaled[0, 0] (14 of 33 values are +Inf, 19 are -Inf), assigned at script.py:11" in done.said
    assert "did:   nothing: nantrap passes the exception on" in done.said
    assert "1 incident in inference: 1 × division_by_zero" in done.said


def test_a_mistake_beside_finite_values(tmp_path: Path) -> None:
    done = run(tmp_path, TEMPERATURE, "mistake")
    assert done.code == 1
    assert "in inference" not in done.said


@pytest.mark.parametrize(
    ("arguments", "fail_on", "code"),
    [(["bad"], "evaluation", 1), (["bad"], "inference", 0), ([], "evaluation,inference", 0)],
)
def test_the_exit_code(tmp_path: Path, arguments: list[str], fail_on: str, code: int) -> None:
    assert run(tmp_path, VALIDATION, *arguments, options=("--fail-on", fail_on, "--json")).code == code


def test_a_scripted_model(tmp_path: Path) -> None:
    """Its parts are no Python modules: it is not watched, and runs as it would."""
    done = run(tmp_path, SCRIPTED, "bad")
    assert done.code == 0
    assert done.out == run(tmp_path, SCRIPTED, "bad", plain=True).out
    assert "Traceback" not in done.said


def test_the_summary_for_programs(tmp_path: Path) -> None:
    done = run(tmp_path, GENERATION, "bad", options=("--json",))
    summary = json.loads(done.out.splitlines()[-1])
    assert (summary["inferences"], summary["evaluations"], summary["calls"]) == ({"softmax_fully_masked_row": 1}, {}, 1)


def test_an_unknown_kind(tmp_path: Path) -> None:
    done = run(tmp_path, GENERATION, options=("--fail-on", "training"))
    assert done.code == 2
    assert "'training' is none of evaluation, inference" in done.said
