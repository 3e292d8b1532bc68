# ruff: noqa: E501
"""Logs in the styles of public trainers: a run as rows, and how each trainer prints them.

The numbers are our own; the form of the lines is that of the trainers' public logs.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Final

import numpy as np


@dataclass(frozen=True)
class Row:
    """One logged step of a run."""

    step: int
    loss: float
    norm: float
    lr: float
    epoch: float
    scale: float = 65536.0
    skipped: int = 0
    """Steps that were left out so far."""
    nan_steps: int = 0
    """Steps with NaN so far."""
    reward: float = 0.0


Rows = Sequence[Row]


def rows(count: int = 120, *, start: float = 8.0, end: float = 2.0, every: int = 10, seed: int = 0) -> list[Row]:
    """A healthy run: the loss falls with noise, the norm is around 1, the learning rate warms up and decays."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(count):
        progress = i / count
        loss = end + (start - end) * float(np.exp(-5 * progress)) + float(rng.normal(0, 0.02 * (start - end)))
        lr = 3e-4 * min(1.0, (i + 1) / 10) * (1 - 0.9 * progress)
        found.append(Row(every * (i + 1), loss, 0.5 + float(rng.random()), lr, 3 * progress))
    return found


def from_step(run: Rows, index: int, **change: Any) -> list[Row]:
    """The same run, with other values from a row on."""
    return [replace(row, **change) if i >= index else row for i, row in enumerate(run)]


def at(run: Rows, places: Sequence[int], **change: Any) -> list[Row]:
    """The same run, with other values in some rows."""
    return [replace(row, **change) if i in places else row for i, row in enumerate(run)]


# ---- How trainers print.


def transformers(run: Rows) -> str:
    return "".join(
        f"{{'loss': {row.loss:.4f}, 'grad_norm': {row.norm!r}, 'learning_rate': {row.lr!r}, 'epoch': {row.epoch:.2f}}}\n"
        for row in run
    )


def transformers_5(run: Rows) -> str:
    return "".join(
        f"{{'loss': '{row.loss:.4g}', 'grad_norm': '{row.norm:.4g}', 'learning_rate': '{row.lr:.4g}', 'epoch': '{row.epoch:.4g}'}}\n"
        for row in run
    )


def trainer_state(run: Rows) -> str:
    history = [
        {
            "epoch": row.epoch,
            "grad_norm": row.norm,
            "learning_rate": row.lr,
            "loss": round(row.loss, 4),
            "step": row.step,
        }
        for row in run
    ]
    return json.dumps({"best_metric": None, "global_step": run[-1].step, "log_history": history, "max_steps": 1200})


def llama_factory(run: Rows) -> str:
    return "".join(
        json.dumps({"current_steps": row.step, "total_steps": 1200, "loss": row.loss, "lr": row.lr, "epoch": row.epoch,
                    "percentage": row.step / 12, "elapsed_time": "0:01:02", "remaining_time": "0:10:00"}) + "\n"
        for row in run
    )  # fmt: skip


def lightning_csv(run: Rows) -> str:
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(["epoch", "grad_norm", "lr-AdamW", "step", "train_loss", "val_loss"])
    for i, row in enumerate(run):
        table.writerow([int(row.epoch), row.norm, row.lr, row.step - 1, row.loss, ""])
        if i % 40 == 39:
            table.writerow([int(row.epoch), "", "", row.step - 1, "", 2.0 + 1.0 / (1 + i)])
    return text.getvalue()


def lightning_bar(run: Rows) -> str:
    lines = []
    for row in run:
        step = (row.step - 1) % 400 + 1
        shown = f"{row.loss:.3f}" if row.loss == row.loss else "nan.0"
        lines.append(
            f"Epoch {int((row.step - 1) // 400)}:  {step / 4:.0f}%|{'█' * 4}▌     | {step}/400 [00:30<00:37, 14.80it/s, v_num=0, train_loss={shown}]"
        )
    return "\r".join(lines) + "\n"


def deepspeed(run: Rows) -> str:
    lines, before = [], 0
    for row in run:
        if row.skipped > before:
            lines.append(
                f"[2025-03-01 10:00:00,123] [INFO] [loss_scaler.py:190:update_scale] [deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {2 * row.scale:.0f}, reducing to {row.scale:.0f}"
            )
        before = row.skipped
        lines.append(
            f"[2025-03-01 10:00:01,456] [INFO] [logging.py:107:log_dist] [Rank 0] step={row.step}, skipped={row.skipped}, lr=[{row.lr!r}], mom=[(0.9, 0.95)]"
        )
        lines.append(f"steps: {row.step} loss: {row.loss:.4f} iter time (s): 0.512 samples/sec: 31.250")
    return "\n".join(lines) + "\n"


def by_interval(run: Rows) -> list[Row]:
    """The same run, where each row counts what was left out since the row before."""
    before = [Row(0, 0.0, 0.0, 0.0, 0.0), *run[:-1]]
    return [
        replace(row, skipped=row.skipped - last.skipped, nan_steps=row.nan_steps - last.nan_steps)
        for row, last in zip(run, before, strict=True)
    ]


def megatron(run: Rows) -> str:
    return "".join(
        f" [2025-03-01 10:00:00] iteration {row.step:8d}/  500000 | consumed samples: {512 * row.step:12d} | elapsed time per iteration (ms): 1234.5 | learning rate: {row.lr:.6E} | global batch size:   512 | lm loss: {row.loss:.6E} | loss scale: {row.scale:.1f} | grad norm: {row.norm:.3f} | number of skipped iterations: {row.skipped:3d} | number of nan iterations: {row.nan_steps:3d} |\n"
        for row in by_interval(run)
    )


def gpt_neox(run: Rows) -> str:
    return "".join(
        f" samples/sec: 10.123 | iteration {row.step:8d}/   10000 | elapsed time per iteration (ms): 3161.1 | learning rate: {row.lr:.3E} | approx flops per GPU: 42.1TFLOPS | lm_loss: {row.loss:.6E} | loss scale: {row.scale:.1f} | number of skipped iterations: {row.skipped:3d} | number of nan iterations: {row.nan_steps:3d} |\n"
        for row in by_interval(run)
    )


def megatron_without_bad_losses(run: Rows) -> str:
    """A loss that is NaN is not printed at all."""
    lines = megatron(run).splitlines(keepends=True)
    return "".join(line.replace(" lm loss: NAN |", "") for line in lines)


def nemo_bar(run: Rows) -> str:
    """The mean that the progress bar shows by itself is NaN in every run that returns no loss to it."""
    return "\r".join(
        f"Epoch 0:   3%|▎         | {row.step}/20101 [2:12:19<76:15:08, 14.05s/it, loss=nan, v_num=, reduced_train_loss={row.loss:.3f}, gradient_norm={row.norm:.3f}, global_step={row.step - 1}.0, consumed_samples=1.44e+5]"
        for row in run
    )


def metric_logger(run: Rows) -> str:
    """The mean over the epoch, in brackets, is NaN after one overflow."""
    return "".join(
        f"Epoch: [{(row.step - 1) // 400}]  [{(row.step - 1) % 400 + 1:4d}/400]  eta: 0:01:02  lr: {row.lr:.6f}  min_lr: {row.lr:.6f}  loss: {row.loss:.4f} ({row.loss:.4f})  loss_scale: 8192.0000 (8646.0600)  weight_decay: 0.0500 (0.0500)  grad_norm: {row.norm:.4f} (nan)  time: 0.4944  data: 0.0001  max mem: 19152\n"
        for row in run
    )


def tabular(run: Rows) -> str:
    return "".join(
        f"2025-03-01 10:00:00.116393  | dreamer itr #{row.step} | saving snapshot...\n"
        f"2025-03-01 10:00:00.116393  | Diagnostics/Iteration             {row.step}\n2025-03-01 10:00:00.116462  | GameScore/Average                -5.33333\n2025-03-01 10:00:00.120008  | loss/Average                    {row.loss}\n2025-03-01 10:00:00.120327  | grad_norm_model/Average     {row.norm}\n"
        for row in run
    )


def nemo(run: Rows) -> str:
    return "".join(
        f"Training epoch 0, iteration {row.step}/1199 | lr: {row.lr:.4g} | global_batch_size: 128 | global_step: {row.step} | reduced_train_loss: {row.loss:.4g} | grad_norm: {row.norm:.4g} | train_step_timing in s: 0.9123 | consumed_samples: {128 * row.step}\n"
        for row in run
    )


def torchtitan(run: Rows) -> str:
    return "".join(
        f"[rank0]:[titan] 2025-03-01 10:00:00,123 - root - INFO - \x1b[31mstep: {row.step:2}  \x1b[32mloss: {row.loss:7.4f}  \x1b[38;2;180;60;0mgrad_norm: {row.norm:7.4f}  \x1b[38;2;54;234;195mmemory: 20.53GiB(25.96%)  \x1b[34mtps: 3,456  \x1b[36mtflops: 100.12  \x1b[35mmfu: 32.10%\x1b[39m\n"
        for row in run
    )


def olmo(run: Rows) -> str:
    return "".join(
        f"2025-03-01 10:00:00.123\tnode01:0\tolmo.train:967\tINFO\t[step={row.step}/556000,epoch=0]\n"
        f"    optim/total_grad_norm={row.norm:.4f}\n    train/CrossEntropyLoss={row.loss:.4f}\n"
        f"    train/Perplexity={np.exp(row.loss):,.4f}\n    throughput/total_tokens={4_194_304 * row.step:,}\n    throughput/device/tokens_per_second=11,432\n"
        for row in run
    )


def verl(run: Rows) -> str:
    return "".join(
        f"step:{row.step} - global_seqlen/min:1201 - global_seqlen/mean:1500.5 - actor/entropy:0.41 - actor/kl_loss:{0.0002 * row.step**0.5:.6f} - actor/pg_loss:{row.loss:.6f} - actor/pg_clipfrac:0.001 - actor/grad_norm:{row.norm:.4f} - actor/lr:{row.lr:.2e} - critic/score/mean:{row.reward:.3f} - critic/rewards/mean:{row.reward:.3f} - critic/advantages/mean:-0.002 - response_length/mean:312.1 - timing_s/step:41.2\n"
        for row in run
    )


def trl_grpo(run: Rows) -> str:
    return "".join(
        f"{{'loss': {row.loss:.4f}, 'grad_norm': {row.norm!r}, 'learning_rate': {row.lr!r}, 'num_tokens': 51200.0, 'completions/mean_length': 180.2, 'rewards/accuracy_reward/mean': {row.reward:.4f}, 'reward': {row.reward:.4f}, 'reward_std': 0.25, 'frac_reward_zero_std': 0.1, 'kl': {0.00002 * row.step:.5f}, 'clip_ratio/low_mean': 0.0, 'epoch': {row.epoch:.2f}}}\n"
        for row in run
    )


def trl_dpo(run: Rows) -> str:
    return "".join(
        f"{{'loss': {row.loss:.4f}, 'grad_norm': {row.norm!r}, 'learning_rate': {row.lr!r}, 'rewards/chosen': {-0.1 * row.epoch:.3f}, 'rewards/rejected': {-0.5 * row.epoch:.3f}, 'rewards/accuracies': 0.7, 'rewards/margins': {0.4 * row.epoch:.3f}, 'logps/chosen': -210.1, 'logits/chosen': -1.2, 'epoch': {row.epoch:.2f}}}\n"
        for row in run
    )


def stable_baselines(run: Rows) -> str:
    return "".join(
        "-----------------------------------------\n"
        f"| rollout/                |             |\n|    ep_len_mean          | {20 + row.reward:<11.3g} |\n|    ep_rew_mean          | {row.reward:<11.3g} |\n"
        f"| time/                   |             |\n|    fps                  | 903         |\n|    iterations           | {row.step:<11} |\n|    total_timesteps      | {2048 * row.step:<11} |\n"
        f"| train/                  |             |\n|    approx_kl            | 0.009       |\n|    clip_fraction        | 0.11        |\n|    learning_rate        | 0.0003      |\n|    loss                 | {row.loss:<11.3g} |\n|    policy_gradient_loss | -0.0131     |\n|    value_loss           | 51.2        |\n"
        "-----------------------------------------\n"
        for row in run
    )


def ultralytics(run: Rows) -> str:
    lines = ["      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size"]
    for i, row in enumerate(run):
        for done in (25, 50):
            lines.append(
                f"    {i + 1:4d}/{len(run)}      2.31G    {row.loss:7.4g}    {1.2 * row.loss:7.4g}    {0.8 * row.loss:7.4g}         23        640: {2 * done:3d}%|{'█' * (done // 5)}| {done}/50 [00:06<00:00,  8.20it/s]"
            )
    return "\r".join(lines) + "\n"


def ultralytics_csv(run: Rows) -> str:
    head = "                  epoch,         train/box_loss,         train/cls_loss,  metrics/mAP50(B),           val/box_loss,               lr/pg0\n"
    return head + "".join(
        f"{i + 1:23d},{row.loss:23.5g},{1.2 * row.loss:23.5g},{0.8 * (1 - np.exp(-i / 30)):18.5g},{2 + 1 / (1 + i) + 0 * row.loss:23.5g},{row.lr:23.5g}\n"
        for i, row in enumerate(run)
    )


def fairseq(run: Rows) -> str:
    lines, before = [], 0
    for row in run:
        if row.skipped > before:
            lines.append(
                f"2025-03-01 10:00:00 | INFO | fairseq.trainer | NOTE: gradient overflow detected, ignoring gradient, setting loss scale to: {row.scale}"
            )
        before = row.skipped
        lines.append(
            f"2025-03-01 10:00:01 | INFO | train_inner | epoch 001: {row.step:6d} / 2000 loss={row.loss:.3f}, nll_loss={0.9 * row.loss:.3f}, ppl={2 ** min(row.loss, 20):.2f}, wps=31256, ups=4.1, wpb=7623, bsz=256, num_updates={row.step}, lr={row.lr:.4g}, gnorm={row.norm:.3f}, loss_scale={row.scale:.0f}, train_wall=24, gb_free=20.1, wall=51"
        )
    return "\n".join(lines) + "\n"


def timm(run: Rows) -> str:
    return "".join(
        f"Train: {(row.step - 1) // 400} [{(row.step - 1) % 400 + 1:4d}/400 ({(row.step - 1) % 400 / 4:3.0f}%)]  Loss: {row.loss:#.3g} ({row.loss:#.3g})  Time: 0.512s,  500.0/s  (0.515s,  497.1/s)  LR: {row.lr:.3e}  Data: 0.010 (0.012)\n"
        for row in run
    )


def mmengine(run: Rows) -> str:
    return "".join(
        f"2025/03/01 10:00:00 - mmengine - INFO - Epoch(train)  [{(row.step - 1) // 400 + 1}][{(row.step - 1) % 400 + 1:4d}/400]  lr: {row.lr:.4e}  eta: 1:02:03  time: 0.5123  data_time: 0.0101  memory: 4012  grad_norm: {row.norm:.4f}  loss: {row.loss:.4f}  loss_cls: {0.4 * row.loss:.4f}  loss_bbox: {0.6 * row.loss:.4f}\n"
        for row in run
    )


def detectron2(run: Rows) -> str:
    return "".join(
        f"[03/01 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: {row.step - 1}  total_loss: {row.loss:.4g}  loss_cls: {0.5 * row.loss:.4g}  loss_box_reg: {0.3 * row.loss:.4g}  time: 0.2412  data_time: 0.0052  lr: {row.lr:.5g}  max_mem: 3021M\n"
        for row in run
    )


def nanogpt(run: Rows) -> str:
    lines = []
    for i, row in enumerate(run):
        lines.append(f"iter {row.step}: loss {row.loss:.4f}, time 123.45ms, mfu 12.34%")
        if i % 25 == 24:
            lines.append(f"step {row.step}: train loss {row.loss:.4f}, val loss {row.loss + 0.1:.4f}")
    return "\n".join(lines) + "\n"


def modded_nanogpt(run: Rows) -> str:
    return "".join(
        f"step:{row.step}/1200 train_loss:{row.loss:.4f} train_time:{100 * row.step}ms step_avg:100.12ms\n"
        for row in run
    )


def torchtune(run: Rows) -> str:
    return "".join(
        f"Step {row.step} | loss:{row.loss} lr:{row.lr} tokens_per_second_per_gpu:2312.2 grad_norm:{row.norm} \n"
        for row in run
    )


def keras(run: Rows) -> str:
    lines = []
    for i, row in enumerate(run):
        lines += [
            f"Epoch {i + 1}/{len(run)}",
            f"100/100 [==============================] - 5s 50ms/step - loss: {row.loss:.4f} - accuracy: {0.9 - 0.8 * np.exp(-i / 20):.4f} - val_loss: {2 + 1 / (1 + i):.4f}",
        ]
    return "\n".join(lines) + "\n"


def diffusers(run: Rows) -> str:
    return (
        "\r".join(
            f"Steps:  {row.step / 12:3.0f}%|██        | {row.step}/1200 [01:02<10:00,  1.61it/s, lr={row.lr:.2e}, step_loss={row.loss:.4g}]"
            for row in run
        )
        + "\n"
    )


def coqui(run: Rows) -> str:
    return "".join(
        f"\x1b[1m   --> TIME: 2025-03-01 10:00:00 -- STEP: {row.step}/1200 -- GLOBAL_STEP: {row.step}\x1b[0m\n     | > loss: {row.loss:.5f}  ({row.loss:.5f})\n     | > grad_norm: {row.norm:.5f}  ({row.norm:.5f})\n     | > current_lr: {row.lr} \n     | > step_time: 0.51  (0.52)\n\n"
        for row in run
    )


def composer(run: Rows) -> str:
    return "".join(
        f"[epoch=0][batch={row.step}/1200]:\n\t Train time/batch: {row.step - 1}\n\t Train loss/train/total: {row.loss:.4f}\n\t Train l2_norm/grad/global: {row.norm:.4f}\n\t Train lr-DecoupledAdamW/group0: {row.lr:.4g}\n"
        for row in run
    )


def espnet(run: Rows) -> str:
    return "".join(
        f"[node01] 2025-03-01 10:00:00,123 (trainer:779) INFO: {(row.step - 1) // 400 + 1}epoch:train:{(row.step - 1) % 400 - 8}-{(row.step - 1) % 400 + 1}batch: iter_time=1.2e-04, forward_time=0.131, loss_ctc={1.2 * row.loss:.3f}, loss={row.loss:.3f}, acc=0.512, backward_time=0.2, grad_norm={row.norm:.3f}, clip=100.000, loss_scale={row.scale:.3e}, optim_step_time=0.04, optim0_lr0={row.lr:.3e}, train_time=0.5\n"
        for row in run
    )


def plain_print(run: Rows) -> str:
    return "".join(f"Epoch {i + 1}, Loss: {row.loss}\n" for i, row in enumerate(run))


def axolotl(run: Rows) -> str:
    """A bar and a printed dictionary in one line."""
    return "".join(
        f" {row.step // 12}%|█▏ | {row.step}/1200 [00:10<00:20,  2.1s/it]\r{{'loss': {row.loss:.4f}, 'grad_norm': {row.norm}, 'learning_rate': {row.lr}, 'memory/max_mem_active(gib)': 12.3, 'epoch': {row.epoch:.2f}}}\n"
        for row in run
    )


def nanochat(run: Rows) -> str:
    return "".join(
        f"step {row.step:05d}/21400 ({row.step / 214:.2f}%) | loss: {row.loss:.6f} | grad norm: {row.norm:.4f} | lrm: 1.00 | dt: 480.12ms | tok/sec: 1,090,000 | mfu: 47.11 | total time: 1.10m\n"
        for row in run
    )


def openrlhf(run: Rows) -> str:
    return "".join(
        f"Train epoch [1/1]:  {row.step // 12}%|█         | {row.step}/1200 [00:10<01:00,  1.2it/s, policy_loss={row.loss:.3g}, actor_lr={row.lr:.2e}, kl=0.01, reward={row.reward:.3f}, grad_norm={row.norm:.3f}]\n"
        for row in run
    )


def olmo_core(run: Rows) -> str:
    return "".join(
        f"2025-03-01 10:00:00.1\tnode:0\tconsole_logger:93\tINFO\t[step={row.step}/1200,epoch=1,eta=1:02:03]\n    train/CE loss={row.loss:.4f}\n    train/PPL={np.exp(row.loss):.4f}\n    optim/total grad norm={row.norm:.4f}\n    optim/LR (group 0)={row.lr:.4g}\n    throughput/total tokens={1000 * row.step}\n"
        for row in run
    )


def yolov5(run: Rows) -> str:
    """The rows of the training stand between those of the validation, which have other columns."""
    head = "      Epoch    GPU_mem   box_loss   obj_loss   cls_loss  Instances       Size\n"
    return head + "".join(
        f"     {i:2d}/{len(run) - 1}      3.67G    {row.loss:.4g}    {row.loss * 0.8:.4g}    {row.loss * 0.3:.4g}        112        640: 100%|██████████| 120/120 [00:18<00:00,  6.4it/s]\n"
        "                 Class     Images  Instances          P          R      mAP50   mAP50-95: 100%|██████████| 4/4 [00:01<00:00]\n"
        f"                   all        128        929      0.7{i % 10}      0.6      0.6      0.4\n"
        for i, row in enumerate(run)
    )


def kohya(run: Rows) -> str:
    return "\r".join(
        f"steps:  {row.step / 12:3.0f}%|██▍       | {row.step}/1200 [01:02<10:00,  1.61it/s, avr_loss={row.loss:.3g}]"
        for row in run
    )


TRACEBACK: Final = """Traceback (most recent call last):
  File "/home/user/train.py", line 210, in <module>
    main()
  File "/home/user/train.py", line 180, in main
    loss.backward()
RuntimeError: CUDA error: an illegal memory access was encountered
"""
DETECTRON_END: Final = """Traceback (most recent call last):
  File "detectron2/engine/train_loop.py", line 155, in train
    self.run_step()
FloatingPointError: Loss became infinite or NaN at iteration=1200!
loss_dict = {'loss_cls': nan, 'loss_box_reg': nan}
"""
SCALE_END: Final = """Traceback (most recent call last):
  File "train.py", line 88, in <module>
    model.step()
Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
"""
IGNORED: Final = """Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f2d9c3e3a60>
Traceback (most recent call last):
  File "torch/utils/data/dataloader.py", line 1478, in __del__
    self._shutdown_workers()
AssertionError: can only test a child process
"""
MULTINOMIAL: Final = """Traceback (most recent call last):
  File "generate.py", line 31, in <module>
    next_tokens = torch.multinomial(probs, num_samples=1).squeeze(1)
RuntimeError: probability tensor contains either `inf`, `nan` or element < 0
"""

Style = Callable[[Rows], str]

PLAIN: Final = rows()
GRPO: Final = [
    replace(row, loss=1e-4 * i**0.8 + 3e-4 * (-1) ** i, reward=0.2 + 0.004 * i) for i, row in enumerate(PLAIN)
]
ZERO: Final = [replace(row, loss=0.0, reward=0.2 + 0.004 * i) for i, row in enumerate(PLAIN)]
PPO: Final = [replace(row, loss=0.02 * np.sin(i) - 0.01 + 3e-4 * i, reward=10 + 2.0 * i) for i, row in enumerate(PLAIN)]
DPO: Final = [replace(row, loss=0.6931 * float(np.exp(-i / 90)) + 0.05) for i, row in enumerate(PLAIN)]
BF16: Final = [replace(row, scale=1.0) for row in PLAIN]
SEARCH: Final = [replace(row, skipped=min(i, 4), scale=65536.0 / 2 ** min(i, 4)) for i, row in enumerate(PLAIN)]
TINY: Final = [
    replace(row, loss=(2.0 * float(np.exp(-i / 3)) + (5e-9 if i in (90, 100, 110) else 0.0)))
    for i, row in enumerate(PLAIN)
]

HEALTHY: Final[dict[str, tuple[str, str]]] = {
    "transformers": ("train.log", transformers(PLAIN)),
    "transformers_5": ("train.log", transformers_5(PLAIN)),
    "trainer_state": ("trainer_state.json", trainer_state(PLAIN)),
    "llama_factory": ("trainer_log.jsonl", llama_factory(PLAIN)),
    "lightning_csv": ("metrics.csv", lightning_csv(PLAIN)),
    "lightning_bar": ("out.log", lightning_bar(PLAIN)),
    "deepspeed": ("out.log", deepspeed(PLAIN)),
    "deepspeed_scale_search": ("out.log", deepspeed(SEARCH)),
    "megatron": ("out.log", megatron(PLAIN)),
    "megatron_bf16": ("out.log", megatron(BF16)),
    "megatron_scale_search": ("out.log", megatron(SEARCH)),
    "gpt_neox": ("out.log", gpt_neox(PLAIN)),
    "nemo_bar": ("nemo.log", nemo_bar(PLAIN)),
    "metric_logger": ("train.log", metric_logger(PLAIN)),
    "tabular": ("debug.log", tabular(PLAIN)),
    "nemo": ("nemo.log", nemo(PLAIN)),
    "torchtitan": ("out.log", torchtitan(PLAIN)),
    "olmo": ("out.log", olmo(PLAIN)),
    "verl": ("out.log", verl(PPO)),
    "trl_grpo": ("out.log", trl_grpo(GRPO)),
    "trl_grpo_zero": ("out.log", trl_grpo(ZERO)),
    "trl_dpo": ("out.log", trl_dpo(DPO)),
    "stable_baselines": ("out.log", stable_baselines(PPO)),
    "ultralytics": ("out.log", ultralytics(PLAIN)),
    "ultralytics_csv": ("results.csv", ultralytics_csv(PLAIN)),
    "fairseq": ("train.log", fairseq(PLAIN)),
    "fairseq_scale_search": ("train.log", fairseq(SEARCH)),
    "timm": ("train.log", timm(PLAIN)),
    "mmengine": ("train.log", mmengine(PLAIN)),
    "detectron2": ("log.txt", detectron2(PLAIN)),
    "nanogpt": ("out.log", nanogpt(PLAIN)),
    "modded_nanogpt": ("out.log", modded_nanogpt(PLAIN)),
    "torchtune": ("log.txt", torchtune(PLAIN)),
    "keras": ("out.log", keras(PLAIN)),
    "diffusers": ("out.log", diffusers(PLAIN)),
    "coqui": ("out.log", coqui(PLAIN)),
    "composer": ("out.log", composer(PLAIN)),
    "espnet": ("train.log", espnet(PLAIN)),
    "plain_print": ("out.log", plain_print(PLAIN)),
    "axolotl": ("out.log", axolotl(PLAIN)),
    "nanochat": ("out.log", nanochat(PLAIN)),
    "openrlhf": ("out.log", openrlhf(GRPO)),
    "olmo_core": ("out.log", olmo_core(PLAIN)),
    "yolov5": ("out.log", yolov5(PLAIN)),
    "kohya": ("out.log", kohya(PLAIN)),
    "no_spike_of_5e-9": ("out.log", torchtune(TINY)),
    "config_that_names_nan": ("out.log", "debug_nan: false\ncheck_for_nan_in_loss_and_grad: True\n" + megatron(PLAIN)),
}  # fmt: skip
"""Name, file name and text of logs of runs with which nothing is wrong."""

DEAD: Final = from_step(PLAIN, 80, loss=nan, norm=nan)
SICK: Final[dict[str, tuple[str, str, str]]] = {
    # a loss of exactly 0 and no gradient norm, to the end
    "transformers_zero_loss": ("train.log", transformers(from_step(PLAIN, 100, loss=0.0, norm=nan)), "grad_norm"),
    "transformers_zero_loss_short": ("train.log", transformers(from_step(PLAIN[:20], 0, loss=0.0, norm=nan)), "grad_norm"),
    "transformers_5_zero_loss": ("train.log", transformers_5(from_step(PLAIN, 100, loss=0.0, norm=nan)), "grad_norm"),
    "trainer_state_zero_loss": ("trainer_state.json", trainer_state(from_step(PLAIN, 60, loss=0.0, norm=nan)), "grad_norm"),
    "transformers_zero_loss_no_norm": ("train.log", transformers(from_step(PLAIN, 100, loss=0.0, norm=0.0)), "grad_norm"),
    # the norm alone
    "megatron_norm_nan": ("out.log", megatron(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    "torchtitan_norm_nan": ("out.log", torchtitan(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    "torchtune_norm_inf": ("log.txt", torchtune(from_step(PLAIN, 100, norm=float("inf"))), "grad_norm"),
    "olmo_norm_nan": ("out.log", olmo(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    "verl_norm_nan": ("out.log", verl(from_step(PPO, 100, norm=nan)), "grad_norm"),
    "coqui_norm_nan": ("out.log", coqui(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    "mmengine_norm_nan": ("train.log", mmengine(from_step(PLAIN, 60, norm=nan)), "grad_norm"),
    "espnet_half_of_the_norms": ("train.log", espnet(at(PLAIN, range(0, 120, 2), norm=nan)), "grad_norm"),
    "trl_grpo_norm_nan": ("out.log", trl_grpo(from_step(GRPO, 100, norm=nan, loss=0.0)), "grad_norm"),
    "axolotl_zero_loss": ("out.log", axolotl(from_step(PLAIN, 100, loss=0.0, norm=nan)), "grad_norm"),
    "nanochat_norm_nan": ("out.log", nanochat(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    "openrlhf_norm_nan": ("out.log", openrlhf(from_step(GRPO, 100, norm=nan)), "grad_norm"),
    "olmo_core_norm_nan": ("out.log", olmo_core(from_step(PLAIN, 90, norm=nan)), "grad_norm"),
    # the loss
    "yolov5_dead": ("out.log", yolov5(DEAD), "loss_finite"),
    "kohya_dead": ("out.log", kohya(DEAD), "loss_finite"),
    "transformers_dead": ("train.log", transformers(DEAD), "loss_finite"),
    "megatron_loss_not_printed": ("out.log", megatron_without_bad_losses(from_step(PLAIN, 80, loss=nan)), "loss_finite"),
    "nemo_bar_dead": ("nemo.log", nemo_bar(DEAD), "loss_finite"),
    "metric_logger_dead": ("train.log", metric_logger(DEAD), "loss_finite"),
    "tabular_dead": ("debug.log", tabular(DEAD), "loss_finite"),
    "lightning_csv_dead": ("metrics.csv", lightning_csv(DEAD), "loss_finite"),
    "lightning_bar_dead": ("out.log", lightning_bar(DEAD), "loss_finite"),
    "deepspeed_dead": ("out.log", deepspeed(DEAD), "loss_finite"),
    "nemo_dead": ("nemo.log", nemo(DEAD), "loss_finite"),
    "verl_dead": ("out.log", verl(from_step(PPO, 80, loss=nan)), "loss_finite"),
    "stable_baselines_dead": ("out.log", stable_baselines(from_step(PPO, 80, loss=nan)), "loss_finite"),
    "ultralytics_dead": ("out.log", ultralytics(DEAD), "loss_finite"),
    "ultralytics_csv_dead": ("results.csv", ultralytics_csv(DEAD), "loss_finite"),
    "timm_dead": ("train.log", timm(DEAD), "loss_finite"),
    "composer_dead": ("out.log", composer(DEAD), "loss_finite"),
    "diffusers_dead": ("out.log", diffusers(DEAD), "loss_finite"),
    "keras_dead": ("out.log", keras(DEAD), "loss_finite"),
    "last_two_lines": ("out.log", nanogpt(from_step(PLAIN[:119], 117, loss=nan)), "loss_finite"),
    "last_line": ("train.log", transformers(from_step(PLAIN, 119, loss=nan, norm=nan)), "loss_finite"),
    "diverged": ("log.txt", torchtune([*PLAIN[:60], *(replace(r, loss=2.5 * 1.06**i) for i, r in enumerate(PLAIN[60:]))]), "loss_falls"),
    # steps that were left out
    "megatron_nan_iterations": ("out.log", megatron([replace(r, nan_steps=10 * max(0, i - 60)) for i, r in enumerate(PLAIN)]), "skipped"),
    "gpt_neox_all_skipped": ("out.log", gpt_neox([replace(r, skipped=10 * max(0, i - 60), scale=1.0) for i, r in enumerate(PLAIN)]), "skipped"),
    "deepspeed_all_skipped": ("out.log", deepspeed([replace(r, skipped=10 * max(0, i - 60), scale=65536 / 2.0 ** min(16, max(0, i - 60))) for i, r in enumerate(PLAIN)]), "skipped"),
    "fairseq_all_skipped": ("train.log", fairseq([replace(r, skipped=max(0, i - 60), scale=128 / 2.0 ** max(0, i - 60)) for i, r in enumerate(PLAIN)]), "scale"),
    # how it ended
    "ended_by_an_error": ("out.log", nanogpt(PLAIN[:60]) + TRACEBACK, "ended"),
    "detectron2_ended": ("log.txt", detectron2(PLAIN) + DETECTRON_END, "ended"),
    "deepspeed_ended": ("out.log", deepspeed(PLAIN) + SCALE_END, "ended"),
    "generation_ended": ("out.log", trl_grpo(GRPO) + MULTINOMIAL, "ended"),
    "restarted_and_ended_again": ("out.log", nanogpt(PLAIN[:60]) + TRACEBACK + nanogpt(PLAIN[60:]) + TRACEBACK, "ended"),
    "ended_on_a_rank": ("out.log", torchtitan(PLAIN) + "".join(f"[rank1]: {line}\n" for line in TRACEBACK.splitlines()), "ended"),
    "killed": ("out.log", nanogpt(PLAIN[:60]) + "slurmstepd: error: Detected 1 oom_kill event in StepId=123.0.\nKilled\n", "ended"),
}  # fmt: skip
"""Name, file name, text, and the check that fails, of logs of runs with which something is."""

DOUBTFUL: Final[dict[str, tuple[str, str]]] = {
    "restarted_after_a_traceback": ("out.log", nanogpt(PLAIN[:60]) + TRACEBACK + nanogpt(PLAIN[60:])),
    "interrupted": ("out.log", nanogpt(PLAIN) + TRACEBACK.replace("RuntimeError: CUDA error: an illegal memory access was encountered", "KeyboardInterrupt")),
    "two_bad_norms": ("train.log", transformers(at(PLAIN, range(20, 28), norm=nan))),
    "ended_with_a_worker": ("out.log", nanogpt(PLAIN) + IGNORED),
    "ended_with_a_failed_upload": ("out.log", transformers(PLAIN) + "wandb: ERROR Error while calling W&B API: context deadline exceeded\n"),
}  # fmt: skip
"""Logs of runs that are alive, in which something is worth a look."""
