# ruff: noqa: E501
"""A third set of logs: trainers for JAX, Paddle, TensorFlow, MXNet, Caffe and Darknet, pictures, proteins, translation.

As in the other two, the numbers are our own and the form of the lines is that of public logs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import exp, inf, nan
from typing import Final

from health.printed_logs import PLAIN, PPO, Row, Rows, from_step

NOT_FINITE: Final = "Loss in not finite. Skip this training step.\n"
DEAD: Final = from_step(PLAIN, 80, loss=nan, norm=nan)


def by_line(line: Callable[[int, Row], str]) -> Callable[[Rows], str]:
    """A trainer that prints a line for each row, from its number and the row."""
    return lambda run: "".join(f"{line(number, row)}\n" for number, row in enumerate(run))


def array(value: float) -> str:
    return f"Array({value:.4f}, dtype=float32)"


def llava_3d(run: Rows) -> str:
    """It leaves out a step whose loss is not finite, and says so in a line of its own."""
    return "".join(
        NOT_FINITE
        if row.loss != row.loss
        else f"Epoch [{row.epoch:.0f}/32]; Iter [{row.step}/127936]; Loss {row.loss:.2f}; LR {row.lr:.2e}; Iter time 0.46; ETA 14:48:34; Mem 18615.49MB\n"
        for row in run
    )


def markdown_table(run: Rows) -> str:
    """A table of a notebook, copied as text."""
    head = "Step | Training Loss | reward / format | kl\n-- | -- | -- | --\n"
    return head + "".join(f"{row.step} | {row.loss:.6f} | 0.5 | 0.0001\n" for row in run)


def best_so_far(run: Rows) -> str:
    """The best value so far is Inf until the first evaluation."""
    best, lines = inf, []
    for number, row in enumerate(run):
        lines.append(json.dumps({"step": row.step, "loss": row.loss, "best_val_loss": best, "val/best_loss": best}))
        best = min(best, row.loss) if number % 10 == 9 else best
    return "\n".join(lines)


STYLES: Final[dict[str, Callable[[Rows], str]]] = {
    "maxtext": by_line(lambda i, r: f"I0811 21:54:55.531340 138304841739136 metric_logger.py:226] completed step: {r.step}, seconds: 0.631, TFLOP/s/device: 68.282, Tokens/s/device: 3116.521, total_weights: 1572864, loss: {r.loss:.3f}, lm_loss: {r.loss:.3f}, perplexity: {exp(min(r.loss, 20)):.3f}"),
    "tensorflow_slim": by_line(lambda i, r: f"INFO:tensorflow:global step {r.step}: loss = {r.loss:.4f} (0.898 sec/step)"),
    "estimator": by_line(lambda i, r: f"INFO:tensorflow:loss = {r.loss:.6g}, step = {r.step} (3.214 sec)\nINFO:tensorflow:global_step/sec: 31.1"),
    "llava_3d": llava_3d,
    "paddleocr": by_line(lambda i, r: f"[2025/03/01 10:00:00] ppocr INFO: epoch: [{r.epoch:.0f}/500], global_step: {r.step}, lr: {r.lr:.6f}, acc: 0.1, norm_edit_dis: 0.2, loss: {r.loss:.6f}, avg_reader_cost: 0.00021 s, avg_batch_cost: 0.2 s, avg_samples: 128.0, ips: 500.1 samples/s, eta: 1:02:03"),
    "paddledetection": by_line(lambda i, r: f"[07/01 10:10:10] ppdet.engine INFO: Epoch: [{i // 40}] [{i % 40 * 20:>4}/800] learning_rate: {r.lr:.6f} loss: {r.loss:.6f} loss_cls: {r.loss / 2:.6f} loss_iou: {r.loss / 2:.6f} eta: 2:00:00 batch_cost: 0.3 data_cost: 0.001 ips: 20.2 images/s"),
    "levanter": by_line(lambda i, r: f"2025-05-01T10:00:00 - 0 - levanter.callbacks - tqdm_loggable.py:145 - INFO :: Progress on:train {r.step}it/10.0kit rate:1.1it/s remaining:2:31:10 elapsed:00:10 postfix:loss={r.loss:.3f}"),
    "easylm": by_line(lambda i, r: f"{{'step': {r.step}, 'loss': {array(r.loss)}, 'gradient_norm': {array(r.norm)}, 'learning_rate': {array(r.lr)}}}"),
    "wandb_history": by_line(lambda i, r: json.dumps({"_step": r.step, "_runtime": 3.0 * i, "_timestamp": 1.7e9 + 3 * i, "train/loss": r.loss, "train/grad_norm": r.norm, "optim/lr": r.lr})),
    "allennlp": by_line(lambda i, r: f"accuracy: {min(0.9, i / 100):.4f}, batch_loss: {r.loss:.4f}, loss: {r.loss:.4f} ||:  {i / 1.2:.0f}%|####      | {r.step}/1200 [00:10<00:20, 30.1it/s]"),
    "marian": by_line(lambda i, r: f"[2025-01-01 10:00:00] Ep. 1 : Up. {r.step} : Sen. {64 * r.step:,} : Cost {r.loss:.8f} * 1,017,921 @ 4,321 after {2000 * r.step:,} : Time 12.31s : 82685.77 words/s : gNorm {r.norm:.4f} : L.r. {r.lr:.4e}"),
    "sockeye": by_line(lambda i, r: f"[2025-01-01:10:00:00:INFO:sockeye.training:__call__] Epoch[{r.epoch:.0f}] Batch [{r.step}] Speed: 120.1 samples/sec 3012.0 tokens/sec 2.1 updates/sec perplexity={exp(min(r.loss, 20)):.6f}"),
    "darknet": by_line(lambda i, r: f" {r.step}: {r.loss:.6f}, {r.loss:.6f} avg loss, {r.lr:.6f} rate, 3.211 seconds, {64 * r.step} images, 10.2 hours left"),
    "caffe": by_line(lambda i, r: f"I0101 10:00:00.123456 12345 solver.cpp:239] Iteration {r.step} (1.2 iter/s, 8.1s/10 iters), loss = {r.loss:.6g}\nI0101 10:00:00.123457 12345 sgd_solver.cpp:112] Iteration {r.step}, lr = {r.lr:.6g}"),
    "mxnet": by_line(lambda i, r: f"INFO:root:Epoch[{i // 40}] Batch [{i % 40 * 50}]\tSpeed: 712.11 samples/sec\taccuracy={min(0.9, i / 100):.6f}\tcross-entropy={r.loss:.6f}"),
    "nerf": by_line(lambda i, r: f"[TRAIN] Iter: {r.step} Loss: {r.loss / 100}  PSNR: {20 - r.loss:.4f}"),
    "simpletuner": by_line(lambda i, r: f"Epoch 1/10, Steps:  {i / 1.2:.0f}%|█▌        | {r.step}/1200 [10:00<1:00:00,  1.21it/s, grad_norm={r.norm:.3g}, lr={r.lr:.2e}, step_loss={r.loss / 10:.4g}]"),
    "ai_toolkit": by_line(lambda i, r: f"my_lora:  {i / 1.2:.0f}%|█▌        | {r.step}/1200 [05:00<20:00,  1.50s/it, lr: {r.lr:.1e} loss: {r.loss / 10:.3e}]"),
    "bionemo": by_line(lambda i, r: f"Training epoch 0, iteration {i}/1199 | lr: {r.lr:.4g} | global_batch_size: 64 | global_step: {i} | reduced_train_loss: {r.loss:.4g} | grad_norm: {r.norm:.4g} | train_step_timing in s: 0.41 | consumed_samples: {64 * (i + 1)}"),
    "slime": by_line(lambda i, r: f"[2025-09-01 10:00:00] train_data_utils.py:412 - step {i}: {{'train/loss': {r.loss}, 'train/pg_loss': {r.loss}, 'train/entropy_loss': 0.31, 'train/ppo_kl': 0.0001, 'train/grad_norm': {r.norm}, 'train/lr-pg_0': 1e-06, 'train/step': {i}}}"),
    "prime_rl": by_line(lambda i, r: f"21:10:10 SUCCESS Step {i} | Time: 10.21s | Loss: {r.loss:.4f} | Entropy: 0.4012 | Mismatch KL: 0.0011 | Grad. Norm: {r.norm:.4f} | LR: 1.00e-06 | Throughput: 10321 tokens/s | MFU: 31.2% | Peak Mem.: 40.1/80.0 GiB (50.1%)"),
    "autoregressive_images": by_line(lambda i, r: f"[08-12 10:00:00] (AR/utils/misc.py, line 310)=> [Ep]: [{i // 40:>4}/250]  [{i % 40 * 100:>4}/5004]  eta: 0:10:00  tlr: {r.lr:.2e}  tnm: {r.norm:.2f}  Lm: {r.loss:.3f} ({r.loss:.3f})  Lt: {r.loss:.3f} ({r.loss:.3f})  Accm: 1.10 (1.02)  time: 0.51  data: 0.0002"),
    "colossal": by_line(lambda i, r: f"[Epoch 0 / Train]:  {i / 1.2:.0f}%|██        | {r.step}/1200 [01:00<04:00,  4.1it/s, loss = {r.loss:.4f}, lr = {r.lr:.3e}, throughput = 812.3 sample_per_sec]"),
    "motion": by_line(lambda i, r: f"[13/12/22 12:02:48][teach.callback.progress][INFO] - Epoch {i}: Train_rf {r.loss:.3e}   Val_rf {r.loss + 0.1:.3e}   Memory 11.2%"),
    "text_numbers": by_line(lambda i, r: json.dumps({"step": str(r.step), "train_loss": f"{r.loss:.4f}", "grad_norm": f"{r.norm:.3f}", "lr": f"{r.lr:.2e}"})),
    "markdown_table": markdown_table,
    "best_so_far": best_so_far,
}  # fmt: skip

POLICIES: Final = ("slime", "prime_rl")
THIRD_HEALTHY: Final = {
    name: (
        "log.jsonl" if name in ("wandb_history", "text_numbers", "best_so_far") else "out.log",
        style(PPO if name in POLICIES else PLAIN),
    )
    for name, style in STYLES.items()
}
"""Name, file name and text of logs of runs with which nothing is wrong."""

HAS_NORM: Final = ("easylm", "wandb_history", "marian", "simpletuner", "bionemo", "slime", "prime_rl", "text_numbers")


def sick(name: str) -> Rows:
    """Norms of NaN where the trainer prints a norm, else a loss of NaN from row 80 on, Inf, or NaN in the last rows."""
    healthy = PPO if name in POLICIES else PLAIN
    if name in HAS_NORM:
        return from_step(healthy, 90, norm=nan)
    kinds: tuple[Rows, ...] = (DEAD, from_step(PLAIN, 100, loss=inf), from_step(PLAIN, 117, loss=nan))
    return DEAD if name == "llava_3d" else kinds[sum(map(ord, name)) % 3]


THIRD_SICK: Final = {name: (file, STYLES[name](sick(name))) for name, (file, _) in THIRD_HEALTHY.items()}
"""The same of runs with which something is."""
