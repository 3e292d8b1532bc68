"""The settings and loops of the five projects that nantrap grew out of, and what their authors needed to hear."""

from __future__ import annotations

from pathlib import Path

import pytest

from nantrap.doctor.examine import examine
from nantrap.doctor.report import RISK_OF

RADIODIFF = {
    "configs/radio_train_m.yaml": """trainer:
  lr: 5e-5
  min_lr: 5e-6
  train_num_steps: 50000
  save_and_sample_every: 200
  amp: True
  fp16: False
  resume_milestone: 10
""",
    "accelerate.yaml": """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
gpu_ids: 1,2
mixed_precision: bf16
num_processes: 2
""",
    "train_cond_ldm.py": """import torch
import torch.nn as nn
from accelerate import Accelerator

class Trainer:
    def __init__(self, model, cfg, fp16=False, amp=True):
        self.accelerator = Accelerator(mixed_precision='fp16' if fp16 else 'no')
        self.model = self.accelerator.prepare(model)
        self.opt = torch.optim.AdamW(model.parameters(), lr=cfg.trainer.lr)
        decay = lambda it: max((1 - it / cfg.trainer.train_num_steps) ** 0.96, cfg.trainer.min_lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.opt, lr_lambda=decay)

    def train(self):
        while self.step < self.total:
            batch = next(self.data)
            with torch.autocast("cuda"):
                if isinstance(self.model, nn.parallel.DistributedDataParallel):
                    loss, logs = self.model.module.training_step(batch)
                else:
                    loss, logs = self.model.training_step(batch)
            if torch.isnan(loss):
                print(f"NaN loss at step {self.step}")
                loss = torch.zeros_like(loss)
                continue
            self.accelerator.backward(loss)
            self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
""",
    "ddm_const_sde.py": """import torch

def p_losses(pred, target, w):
    loss_simple = (w * (pred - target) ** 2).mean()
    if torch.isnan(loss_simple).any():
        loss_simple = torch.nan_to_num(loss_simple, nan=0.0)
    return loss_simple
""",
}
LATENTDLM = {
    "config.yaml": """optimizer:
  type: adamw
  lr: 1e-4
  grad_clip_norm: 1.0
training:
  warmup_steps: 50
  max_steps: 190000
  dtype: pure_bf16
loss:
  loss_scale: 1.0
  latent_loss_weight: 1.0
""",
    "train_mmdit.py": """import torch

def train(trainer, loader, optimizer, config, state):
    for batch in loader:
        loss, metrics = trainer(batch)
        (loss * config.loss.loss_scale).backward()
        if config.optimizer.grad_clip_norm and config.optimizer.grad_clip_norm > 0:
            norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), config.optimizer.grad_clip_norm)
        else:
            norm = torch.nn.utils.clip_grad_norm_(trainer.parameters(), 1e6)
        if torch.isnan(norm):
            for param in trainer.parameters():
                if param.grad is not None:
                    param.grad.data.zero_()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
""",
    "improved_trainer.py": """import torch

def latent_loss_of(pred, target):
    latent_loss = ((pred - target) ** 2).mean()
    return torch.clamp(latent_loss, max=100.0)
""",
}
RESTRAN = {
    "configs/config.py": """MODEL_TYPE = "restran_mhc"
LEARNING_RATE = 1e-4
BATCH_SIZE = 32
GRAD_CLIP = 1.0
MHC_N = 2
RESUME = "results/last.pth"
""",
    "src/components.py": """import torch

class RMSNorm(torch.nn.Module):
    def __init__(self, dim, eps=1e-20):
        super().__init__()
        self.eps = eps

def mix(h_res, x):
    return torch.einsum('bnn,bnchw->bnchw', h_res, x)
""",
    "src/trainer.py": """import torch

class Trainer:
    def resume(self, path):
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
""",
}
TEMI = {
    "config.py": """LEARNING_RATE = 1e-4
CLIP_GRAD = 3.0
STUDENT_TEMP = 0.1
TEACHER_TEMP = 0.01
BETA = 0.6
BATCH_SIZE = 256
USE_FP16 = False
""",
    "train.py": """import torch

def probability_loss(logits, target):
    p = torch.softmax(logits, dim=-1)
    return -(target * torch.log(p)).sum(-1).mean()

def train(model, loader, optimizer):
    for batch in loader:
        loss = model(batch)
        if torch.isnan(loss).any():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
}
PIXELDLM = {
    "train_test.sh": "LR=1e-4\nMAX_GRAD_NORM=1.0\npython train.py --lr $LR --max_grad_norm $MAX_GRAD_NORM --use_amp\n",
    "model.py": """import torch

class MultiHeadAttention(torch.nn.Module):
    def forward(self, attn, attention_mask=None):
        if attention_mask is not None:
            mask_expanded = attention_mask.unsqueeze(1).unsqueeze(2)
            attn = attn.masked_fill(mask_expanded == 0, float('-inf'))
            if (attn == float('-inf')).all():
                attn = torch.zeros_like(attn)
            else:
                attn = attn.softmax(dim=-1)
        return attn
""",
    "train.py": """import torch

def train_epoch_optimized(model, loader, optimizer, max_grad_norm):
    scaler = torch.cuda.amp.GradScaler()
    for batch in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = model(batch)
        scaler.scale(loss).backward()
        for name, param in model.named_parameters():
            if param.grad is not None:
                if torch.isnan(param.grad).any() or torch.isinf(param.grad).any():
                    param.grad.zero_()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        scaler.step(optimizer)
        scaler.update()

def main(model, loader, optimizer):
    for epoch in range(10):
        train_epoch_optimized(model, loader, optimizer, 1.0)
""",
}


@pytest.mark.parametrize(
    ("files", "needed"),
    [
        (
            RADIODIFF,
            {
                ("NT804", "configs/radio_train_m.yaml", "high"),
                ("NT804", "train_cond_ldm.py", "high"),
                ("NT806", "train_cond_ldm.py", "high"),
                ("NT808", "train_cond_ldm.py", "medium"),
                ("NT851", "train_cond_ldm.py", "medium"),
                ("NT852", "ddm_const_sde.py", "high"),
                ("NT854", "train_cond_ldm.py", "high"),
                ("NT867", "train_cond_ldm.py", "high"),
            },
        ),
        (
            LATENTDLM,
            {
                ("NT811", "train_mmdit.py", "low"),
                ("NT813", "config.yaml", "low"),
                ("NT817", "config.yaml", "medium"),
                ("NT851", "train_mmdit.py", "medium"),
                ("NT853", "train_mmdit.py", "high"),
                ("NT870", "improved_trainer.py", "medium"),
            },
        ),
        (
            RESTRAN,
            {
                ("NT824", "src/trainer.py", "medium"),
                ("NT866", "src/components.py", "high"),
                ("NT868", "src/components.py", "medium"),
            },
        ),
        (
            TEMI,
            {
                ("NT818", "config.py", "medium"),
                ("NT851", "train.py", "medium"),
                ("NT860", "train.py", "medium"),
            },
        ),
        (
            PIXELDLM,
            {
                ("NT853", "train.py", "high"),
                ("NT855", "train.py", "high"),
                ("NT857", "train.py", "medium"),
                ("NT864", "model.py", "medium"),
                ("NT865", "model.py", "medium"),
            },
        ),
    ],
    ids=["radiodiff", "latentdlm", "restran_mhc", "temi", "pixeldlm"],
)
def test_what_the_authors_needed(
    files: dict[str, str], needed: set[tuple[str, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = {
        (each.code, each.place.file.replace("\\", "/"), RISK_OF[each.severity]) for each in examine(["."]).findings
    }
    assert found == needed
