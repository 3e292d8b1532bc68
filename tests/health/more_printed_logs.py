# ruff: noqa: E501
"""A second set of logs, written before the reader had seen any of their styles: speech, medical images, robots, RL, older trainers.

The numbers are our own; the form of the lines is that of public logs. What `printed_logs` has is not repeated here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from math import exp, inf, nan, sin
from typing import Final

from health.printed_logs import PLAIN, PPO, TRACEBACK, Rows, at, from_step, rows


def icefall(run: Rows) -> str:
    return "".join(
        f"2025-01-18 18:21:26,565 INFO [train.py:1142] (5/8) Epoch 2, batch {row.step}, loss[loss={row.loss:.4g}, simple_loss={row.loss * 1.1:.4g}, pruned_loss={row.loss * 0.3:.4g}, over 2699.00 frames. ], tot_loss[loss={row.loss:.4g}, simple_loss={1.1 * row.loss:.4g}, over 643152.39 frames. ], batch size: 10, lr: {row.lr:.2e}, grad_scale: 16.0\n"
        for row in run
    )


def nnunet(run: Rows) -> str:
    """The loss of Dice and cross-entropy falls below 0; a class that no image has gives a Dice of NaN."""
    return "".join(
        f"2025-06-12 18:20:21.625154: Epoch {i} \n2025-06-12 18:20:21.630196: Current learning rate: {row.lr:.5f} \n"
        f"2025-06-12 18:26:16.488273: train_loss {row.loss:.4f} \n2025-06-12 18:26:16.493741: val_loss {row.loss + 0.05:.4f} \n"
        f"2025-06-12 18:26:16.497657: Pseudo dice [{min(0.9, i / 100):.4f}, nan, 0.2] \n2025-06-12 18:26:16.502149: Epoch time: 354.87 s \n"
        + ("2025-06-12 18:26:16.507174: Yayy! New best EMA pseudo Dice: 0.1 \n" if i % 7 == 0 else "")
        + "2025-06-12 18:26:18.638051:  \n"
        for i, row in enumerate(run)
    )


def rsl_rl(run: Rows) -> str:
    return "".join(
        "#" * 80 + f"\n                      Learning iteration {i}/1500                       \n\n"
        "                       Computation: 44180 steps/s (collection: 1.731s, learning 0.495s)\n"
        "             Mean action noise std: 1.00\n"
        f"          Mean value_function loss: {row.norm:.4f}\n"
        f"               Mean surrogate loss: {row.loss:.4f}\n"
        "                 Mean entropy loss: 17.0273\n"
        f"                       Mean reward: {row.reward:.2f}\n"
        "               Mean episode length: 29.72\n Mean episode rew_tracking_ang_vel: 0.0010\n"
        + "-" * 80
        + f"\n                   Total timesteps: {98304 * (i + 1)}\n                    Iteration time: 2.23s\n                               ETA: 05:40:56\n\n"
        for i, row in enumerate(run)
    )


def internevo(run: Rows) -> str:
    return "".join(
        f"2025-11-24 02:35:28,531 INFO pipeline.py:770 in record_current_batch_training_metrics -- tflops=229.6 step={i} loss={row.loss} real_tgs=719.84 tgs (tokens/gpu/second)=720.46 tgs/tgs_avg=722.47 lr={row.lr} loss_scale=16384.0 grad_norm={{'0_default': {row.norm}, '1_fp32': 0.0}} micro_num=16 num_consumed_tokens={1048576 * i} inf_nan_skip_batches={row.skipped} num_samples_in_batch=102 fwd_bwd_time=181.49 acc=0.5494 perplexity=9.0888 loss_from_metric={row.loss:.3f}\n"
        for i, row in enumerate(run)
    )


def torchvision_detection(run: Rows) -> str:
    return "".join(
        f"Epoch: [0]  [{row.step:5d}/7329]  eta: 0:10:13  lr: {row.lr:.6f}  loss: {row.loss:.4f} ({row.loss:.4f})  loss_classifier: {row.loss * 0.4:.4f} ({row.loss * 0.4:.4f})  loss_box_reg: {row.loss * 0.6:.4f} ({row.loss * 0.6:.4f})  time: 2.6561  data: 1.6422  max mem: 4248\n"
        for row in run
    )


def vits(run: Rows) -> str:
    """Losses in a list without names."""
    return "".join(
        f"INFO:ljs_base:Train Epoch: {i + 1} [22%]\nINFO:ljs_base:[{row.loss}, {row.loss * 1.2}, {row.loss * 2}, {20 + row.loss}, 1.01, {row.loss * 0.7}, {row.step}, {row.lr}]\nINFO:ljs_base:====> Epoch: {i + 1}\n"
        for i, row in enumerate(run)
    )


def nanotron(run: Rows) -> str:
    return "".join(
        f"10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: {row.step} / 378950 | consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 22.8K | tokens_per_sec_per_gpu: 11.4K | global_batch_size: 64 | lm_loss: {row.loss:.3g} | lr: {row.lr:.3g} | model_tflops_per_gpu: 38.3 | hardware_tflops_per_gpu: 38.3 | grad_norm: {row.norm:.3g}\n"
        for row in run
    )


def swift(run: Rows) -> str:
    return "".join(
        json.dumps({"loss": row.loss, "grad_norm": row.norm, "learning_rate": row.lr, "token_acc": 0.61, "memory(GiB)": 46.7, "train_speed(iter/s)": 0.056, "epoch": row.epoch, "global_step/max_steps": f"{row.step}/1296", "percentage": "23.15%", "elapsed_time": "20h 20m 38s", "remaining_time": "2d 19h 32m 31s"}) + "\n"
        for row in run
    )  # fmt: skip


def swift_grpo(run: Rows, *, kl: float = 0.001) -> str:
    return "".join(
        f"{{'loss': {row.loss:.8f}, 'grad_norm': {row.norm}, 'learning_rate': {row.lr}, 'memory(GiB)': 146.13, 'completions/mean_length': 1047.1, 'rewards/ToolAccuracy/mean': {row.reward}, 'rewards/ToolAccuracy/std': 0.3, 'reward': {row.reward}, 'reward_std': 0.2, 'kl': {kl if row.loss == row.loss else nan}, 'clip_ratio/low_mean': 0.0, 'epoch': {row.epoch:.2f}, 'global_step/max_steps': '{row.step}/1296'}}\n"
        for row in run
    )


def notebook_table(run: Rows) -> str:
    return "Step\tTraining Loss\treward\treward_std\tkl\tentropy\n" + "".join(
        f"{i + 1}\t{row.loss:.6f}\t{row.reward:.6f}\t0.250000\t{'nan' if row.loss != row.loss else '0.001000'}\tNo Log\n"
        for i, row in enumerate(run)
    )


def opennmt(run: Rows) -> str:
    return "".join(
        f"[2025-11-26 14:47:26,759 INFO] Step {row.step}/50000; acc:  51.25; ppl: {exp(min(row.loss, 20)):5.2f}; xent: {row.loss:4.2f}; lr: {row.lr:7.5f}; 1320/1445 tok/s;  {row.step} sec\n"
        for row in run
    )


def flair(run: Rows) -> str:
    return "".join(
        f"2025-02-19 18:37:07,467 epoch {i + 1} - iter 24/249 - loss {row.loss:.8f} - time (sec): 1.20 - samples/sec: 100.00 - lr: 0.100000\n2025-02-19 18:37:12,097 EPOCH {i + 1} done: loss {row.loss:.4f} - lr 0.1000 - bad epochs 0\n2025-02-19 18:37:12,571 DEV  : loss {row.loss + 0.1:.6f} - f-score 0.5586\n"
        for i, row in enumerate(run)
    )


def speechbrain(run: Rows) -> str:
    return "".join(
        f"epoch: {i + 1}, lr: {row.lr:.2e} - train loss: {row.loss:.2f} - valid loss: {row.loss + 0.1:.2f}, valid PER: {80 * exp(-i / 30):.2f}\n"
        for i, row in enumerate(run)
    )


def imagenet(run: Rows) -> str:
    return "".join(
        f"Epoch: [0][{row.step:5d}/5005]\tTime  0.512 ( 0.610)\tData  0.001 ( 0.034)\tLoss {row.loss:.4e} ({row.loss:.4e})\tAcc@1   0.39 (  0.22)\tAcc@5   1.17 (  0.80)\n"
        for row in run
    )


def mnist(run: Rows) -> str:
    lines = []
    for i, row in enumerate(run):
        lines.append(
            f"Train Epoch: {i // 40 + 1} [{(i % 40) * 640}/60000 ({(i % 40) * 640 // 600}%)]\tLoss: {row.loss:.6f}"
        )
        if i % 40 == 39:
            lines.append(
                f"\nTest set: Average loss: {0.1 + 0 * row.loss:.4f}, Accuracy: {9000 + i}/10000 ({90 + i // 40}%)\n"
            )
    return "\n".join(lines) + "\n"


def open_clip(run: Rows) -> str:
    return "".join(
        f"2025-03-01,10:00:00 | INFO | Train Epoch: 0 [{row.step * 128:8d}/10968539 ({row.step // 100}%)] Data (t): 0.512 Batch (t): 1.204, 500.1/s LR: {row.lr:5f} Logit Scale: 14.286 Contrastive_loss: {row.loss:#.5g} ({row.loss:#.5g}) Loss: {row.loss:#.5g} ({row.loss:#.5g})\n"
        for row in run
    )


def dit(run: Rows) -> str:
    return "".join(
        f"[\x1b[34m2025-03-01 10:00:00\x1b[0m] (step={row.step:07d}) Train Loss: {row.loss:.4f}, Train Steps/Sec: 3.20\n"
        for row in run
    )


def openai_boxes(run: Rows) -> str:
    return "".join(
        f"------------------------\n| grad_norm  | {row.norm:<9.3g} |\n| loss       | {row.loss:<9.3g} |\n| loss_q0    | {row.loss * 2:<9.3g} |\n| mse        | {row.loss:<9.3g} |\n| param_norm | 265       |\n| samples    | {64 * row.step:<9} |\n| step       | {row.step:<9} |\n------------------------\n"
        for row in run
    )


def llm_c(run: Rows) -> str:
    return "".join(
        f"step {row.step:4d}/19560 | loss {row.loss:7.6f} (+1.23z)| norm {row.norm:6.4f} (-0.51z)| lr {row.lr:.2e} | 1000.00 ms | 50.1% bf16 MFU | 524288 tok/s\n"
        for row in run
    )


def build_nanogpt(run: Rows) -> str:
    """The file that it writes: step, what, value."""
    lines = []
    for i, row in enumerate(run):
        lines.append(f"{row.step} train {row.loss:.6f}")
        if i % 30 == 0:
            lines += [f"{row.step} val {row.loss + 0.05:.4f}", f"{row.step} hella 0.2463"]
    return "\n".join(lines) + "\n"


def lingua(run: Rows) -> str:
    return "".join(
        f"0: INFO    25-12-01 10:00:00.000000 - 0:01:00 - step: {row.step}  acc: 0  loss: {row.loss:7.4f}  grad: {row.norm:.2e}  flops: 1.21e+14  wps: 1.05e+04  iter: 0.51  data: 0.001  lr: {row.lr:.2e}  mem: 30%  pow: 600 W\n"
        for row in run
    )


def litgpt(run: Rows) -> str:
    return "".join(
        f"Epoch 1 | iter {row.step} step {row.step // 4} | loss train: {row.loss:.3f}, val: n/a | iter time: 300.12 ms (step) remaining time: 0:10:00\n"
        for row in run
    )


def metaseq(run: Rows) -> str:
    return "".join(
        "2025-03-01 10:00:00 | INFO | train_inner | "
        + json.dumps({"epoch": 1, "actv_norm": "0.01", "clip": "0", "gnorm": f"{row.norm:.3f}", "gb_free": "60", "loss": f"{row.loss:.3f}", "lr": f"{row.lr:.6g}", "loss_scale": "4", "num_updates": str(row.step), "ppl": f"{2 ** min(row.loss, 20):.2f}", "wps": "100000"}) + "\n"
        for row in run
    )  # fmt: skip


def old_mmcv(run: Rows) -> str:
    return "".join(
        f"2025-08-01 00:27:30,524 - mmdet - INFO - Epoch [{(row.step - 1) // 400 + 1}][{(row.step - 1) % 400 + 1}/400]\tlr: {row.lr:.3e}, eta: 1 day, 1:16:27, time: 1.940, data_time: 0.004, memory: 5280, loss_rpn_cls: {row.loss * 0.3:.4f}, s0.acc: 94.4193, s0.loss_bbox: {row.loss * 0.7:.4f}, loss: {row.loss:.4f}, grad_norm: {row.norm:.4f}\n"
        for row in run
    )


def mmcv_json(run: Rows) -> str:
    return json.dumps({"env_info": "sys.platform: linux", "seed": 0, "exp_name": "faster_rcnn.py"}) + "\n" + "".join(
        json.dumps({"mode": "train", "epoch": (row.step - 1) // 400 + 1, "iter": (row.step - 1) % 400 + 1, "lr": row.lr, "memory": 5280, "data_time": 0.004, "loss_cls": row.loss * 0.3, "loss": row.loss, "grad_norm": row.norm, "time": 1.9}) + "\n"
        for row in run
    )  # fmt: skip


def slowfast(run: Rows) -> str:
    return "".join(
        f"[03/01 10:00:00][INFO] logging.py:  99: json_stats: {json.dumps({'_type': 'train_iter', 'dt': 0.5, 'epoch': '1/200', 'eta': '1 day, 10:00:00', 'gpu_mem': '12.1G', 'grad_norm': row.norm, 'iter': f'{row.step}/1200', 'loss': row.loss, 'lr': row.lr})}\n"
        for row in run
    )


def mae(run: Rows) -> str:
    return "".join(
        json.dumps({"train_lr": row.lr, "train_loss": row.loss, "epoch": i}) + "\n" for i, row in enumerate(run)
    )


def gaussian_splatting(run: Rows) -> str:
    bars = "\r".join(
        f"Training progress:  {row.step // 300}%|█▏        | {row.step}/30000 [01:00<09:00, 50.1it/s, Loss={row.loss * 0.02:.7f}, Depth Loss=0.0000000]"
        for row in run
    )
    return bars + "\n\n[ITER 7000] Evaluating test: L1 0.0312 PSNR 27.1234 [01/03 10:00:00]\n"


def pix2pix(run: Rows) -> str:
    return "".join(
        f"(epoch: 1, iters: {row.step * 10}, time: 0.312, data: 0.204) D_A: {0.25 + 0.1 * sin(i):.3f} G_A: {0.5 + 0.2 * sin(i / 2):.3f} cycle_A: {row.loss:.3f} idt_A: {row.loss / 2:.3f} \n"
        for i, row in enumerate(run)
    )


def basicsr(run: Rows) -> str:
    return "".join(
        f"2025-03-01 10:00:00,123 INFO: [ESRGA..][epoch:  0, iter: {row.step * 100:8,d}, lr:({row.lr:.3e},)] [eta: 1 day, 10:00:00, time (data): 0.412 (0.005)] l_g_pix: {row.loss * 0.01:.4e} l_g_percep: {row.loss:.4e} l_g_gan: 1.2000e-01 l_d_real: 2.0000e-02 out_d_real: 3.1000e+00 \n"
        for row in run
    )


def deepspeed_chat(run: Rows) -> str:
    return "".join(
        f"Epoch: 0 | Step: {i} | PPO Epoch: 1 | Actor Loss: {row.loss} | Critic Loss: {row.norm} | Unsupervised Loss: 0.0\nEnd-to-End => Latency: 8.12s, TFLOPs: 1.21, Samples/sec: 3.9\naverage reward score: {row.reward}\n-------------------------------------------------------------------------------------\n"
        for i, row in enumerate(run)
    )


def tianshou(run: Rows) -> str:
    return "".join(
        f"Epoch #{i + 1}: 1001it [00:01, 701.22it/s, env_step={1000 * (i + 1)}, gradient_step={100 * (i + 1)}, len=200, loss={row.loss:.3f}, n/ep=1, rew={row.reward:.2f}]\nEpoch #{i + 1}: test_reward: {row.reward:.6f} ± 2.0, best_reward: {row.reward:.6f} ± 2.0 in #{i + 1}\n"
        for i, row in enumerate(run)
    )


def pyg(run: Rows) -> str:
    return "".join(
        f"Epoch: {i + 1:03d}, Loss: {row.loss:.4f}, Train: {0.9 - exp(-1 - i / 30):.4f}, Val: {0.8 - exp(-1 - i / 30):.4f}, Test: {0.8 - exp(-1 - i / 30):.4f}\n"
        for i, row in enumerate(run)
    )


def fastai(run: Rows) -> str:
    return "epoch     train_loss  valid_loss  accuracy  time    \n" + "".join(
        f"{i}         {row.loss:.6f}    {row.loss + 0.1:.6f}    {min(0.9, 0.3 + i / 200):.6f}  00:10     \n"
        for i, row in enumerate(run)
    )


def skorch(run: Rows) -> str:
    return "  epoch    train_loss    valid_acc    valid_loss     dur\n-------  ------------  -----------  ------------  ------\n" + "".join(
        f"{i + 1:7d}        \x1b[36m{row.loss:.4f}\x1b[0m       \x1b[32m{min(0.9, 0.3 + i / 200):.4f}\x1b[0m        \x1b[35m{row.loss + 0.1:.4f}\x1b[0m  0.0212\n"
        for i, row in enumerate(run)
    )  # fmt: skip


def trainer_with_evaluation(run: Rows, *, ended: bool = True) -> str:
    """transformers: dictionaries of evaluations between those of the training, a summary at the end."""
    lines = []
    for i, row in enumerate(run):
        lines.append(
            f"{{'loss': {row.loss:.4f}, 'grad_norm': {row.norm!r}, 'learning_rate': {row.lr!r}, 'epoch': {row.epoch:.2f}}}"
        )
        if i % 40 == 39:
            lines.append(
                f"{{'eval_loss': {row.loss + 0.05}, 'eval_runtime': 12.3, 'eval_samples_per_second': 81.2, 'eval_steps_per_second': 10.2, 'epoch': {row.epoch:.2f}}}"
            )
    if ended:
        lines.append(
            f"{{'train_runtime': 123.4, 'train_samples_per_second': 81.2, 'train_steps_per_second': 9.7, 'train_loss': {sum(r.loss for r in run) / len(run)}, 'epoch': 3.0}}"
        )
        lines.append(
            "***** train metrics *****\n  epoch                    =        3.0\n  train_runtime            = 0:02:03.40"
        )
    return "\n".join(lines) + "\n"


def rich_bar(run: Rows) -> str:
    return "".join(
        f"Epoch 0/9  ━━━╸━━━━━━━━━━━━ {row.step}/1200 0:00:12 • 0:01:10 61.04it/s v_num: 3.000 train_loss_step: {row.loss:.3f}\n"
        for row in run
    )


def accelerate_print(run: Rows) -> str:
    return "".join(f"03/01/2025 10:00:00 - INFO - __main__ -   step {row.step}: {{'loss': tensor({row.loss:.4f}, device='cuda:0', grad_fn=<DivBackward0>), 'lr': {row.lr}}}\n" for row in run)  # fmt: skip


def tensor_print(run: Rows) -> str:
    return "".join(f"{row.step} tensor({row.loss:.4f}, device='cuda:0', grad_fn=<NllLossBackward0>)\n" for row in run)


def bare_numbers(run: Rows) -> str:
    return "".join(f"{row.step}:\t{row.loss:.9f}\n" for row in run)


def wandb_summary(run: Rows) -> str:
    last = run[-1]
    return (
        "".join(f"step {row.step}: loss={row.loss:.4f}\n" for row in run[:-1])
        + f"wandb: \nwandb: Run history:\nwandb:            train/loss █▇▆▅▄▃▂▁\nwandb: \nwandb: Run summary:\nwandb:            train/loss {last.loss}\nwandb:       train/grad_norm {last.norm}\nwandb: \n"
    )


def monai(run: Rows) -> str:
    return "".join(
        f"2025-04-26 06:32:17,370 - ignite.engine.engine.SupervisedTrainer - INFO - Epoch: {i // 40 + 1}/3, Iter: {i % 40 + 1}/40 -- train_loss: {row.loss:.4f} \n"
        for i, row in enumerate(run)
    )


def lion(run: Rows) -> str:
    return "".join(
        f"2025-01-25 00:21:09.074 | INFO     | trainers.base_trainer:train_epochs:256 - [R0] | E{i} iter[ 14/ 15] | [Loss] {row.loss:.2f} | [exp] ./exp/0125/car | [step] {15 * i:5d} | [url] none | [time] 0.4m (~5h) |[best] 0 -100.000x1e-2 \n"
        for i, row in enumerate(run)
    )


def german(run: Rows) -> str:
    return "".join(
        f"Epoche {i + 1}/120 - Verlust: {row.loss:.4f} - loss: {row.loss:.4f}\n" for i, row in enumerate(run)
    )


def verl_tagged(run: Rows) -> str:
    return "".join(
        f"\x1b[36m(TaskRunner pid=12345)\x1b[0m step:{row.step} - global_seqlen/min:1201 - actor/entropy:0.41 - actor/pg_loss:np.float64({row.loss:.6f}) - actor/grad_norm:np.float64({row.norm:.4f}) - critic/rewards/mean:{row.reward:.3f} - training/global_step:{row.step}\n"
        for row in run
    )


def gan(run: Rows) -> str:
    return "".join(
        f"[{i // 30}/4][{i % 30}/30]\tLoss_D: {0.8 + 0.5 * sin(i):.4f}\tLoss_G: {row.loss:.4f}\tD(x): 0.6612\tD(G(z)): 0.3012 / 0.1210\n"
        for i, row in enumerate(run)
    )


FALLING: Final = rows(start=0.7, end=-0.8)
"""A loss that falls below 0."""
DEAD: Final = from_step(PLAIN, 80, loss=nan, norm=nan)
DEAD_FALLING: Final = from_step(FALLING, 80, loss=nan, norm=nan)
DEAD_PPO: Final = from_step(PPO, 80, loss=nan, norm=nan, reward=nan)
GANS: Final = [replace(row, loss=2.0 + 0.8 * sin(i / 3) + 0.005 * i) for i, row in enumerate(PLAIN)]
SCALE_SEARCH: Final = at(PLAIN, (0, 1, 2), norm=nan)
"""float16: the gradient norm is NaN until the scale is found."""

SMI: Final = "| NVIDIA-SMI 550.54    Driver Version: 550.54    CUDA Version: 12.4 |\n"
WARNED: Final = "/usr/lib/python3/dist-packages/numpy/lib/nanfunctions.py:1879: RuntimeWarning: invalid value encountered in scalar divide\n"
STOPPED: Final = "Loss is nan, stopping training\n{'loss_classifier': tensor(nan, device='cuda:0', grad_fn=<NllLossBackward0>), 'loss_box_reg': tensor(0.0082, device='cuda:0')}\n"
LIGHTNING_STOP: Final = (
    "Monitored metric val_loss = nan is not finite. Previous best value was 1.512. Signaling Trainer to stop.\n"
)
SPEECHBRAIN_END: Final = (
    "2025-06-21 20:40:24,602 - speechbrain.core - ERROR - Exception:\nTraceback (most recent call last):\n"
    '  File "speechbrain/core.py", line 915, in check_gradients\n    raise ValueError(\n'
    "ValueError: Loss is not finite and patience is exhausted. To debug, wrap `fit()` with autograd's `detect_anomaly()`, e.g.\n\nwith torch.autograd.detect_anomaly():\n\tbrain.fit(...)\n"
)
NORMAL_END: Final = (
    'Traceback (most recent call last):\n  File "train.py", line 131, in <module>\n    runner.learn()\n'
    "ValueError: Expected parameter loc (Tensor of shape (4096, 10)) of distribution Normal(loc: torch.Size([4096, 10]), scale: torch.Size([4096, 10])) to satisfy the constraint Real(), but found invalid values:\n"
    "tensor([[nan, nan, nan],\n        [nan, nan, nan]], device='cuda:0')\n"
)
CHILD_FAILED: Final = (
    "E0301 10:00:00.123000 12345 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) local_rank: 3 (pid: 12349) of binary: /usr/bin/python\n"
    + TRACEBACK.replace(
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
    )
    + "============================================================\ntrain.py FAILED\n------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2025-03-01_10:00:00\n  exitcode  : -6 (pid: 12349)\n============================================================\n"
)
SEGFAULT: Final = 'Fatal Python error: Segmentation fault\n\nThread 0x00007f (most recent call first):\n  File "train.py", line 3 in <module>\nSegmentation fault (core dumped)\n'

MORE_HEALTHY: Final[dict[str, tuple[str, str]]] = {
    "icefall": ("train.log", icefall(PLAIN)),
    "nnunet": ("training_log.txt", nnunet(FALLING)),
    "rsl_rl": ("out.log", rsl_rl(PPO)),
    "internevo": ("out.log", internevo(PLAIN)),
    "torchvision_detection": ("out.log", torchvision_detection(PLAIN)),
    "vits": ("train.log", vits(PLAIN)),
    "nanotron": ("out.log", nanotron(PLAIN)),
    "swift": ("logging.jsonl", swift(PLAIN)),
    "swift_grpo": ("out.log", swift_grpo(PPO)),
    "notebook_table": ("out.log", notebook_table([replace(r, reward=0.2 + 0.004 * i) for i, r in enumerate(PPO)])),
    "opennmt": ("out.log", opennmt(PLAIN)),
    "flair": ("training.log", flair(PLAIN)),
    "speechbrain": ("train_log.txt", speechbrain(PLAIN)),
    "imagenet": ("out.log", imagenet(PLAIN)),
    "mnist": ("out.log", mnist(PLAIN)),
    "open_clip": ("out.log", open_clip(PLAIN)),
    "dit": ("log.txt", dit(PLAIN)),
    "openai_boxes": ("log.txt", openai_boxes(PLAIN)),
    "llm_c": ("main.log", llm_c(PLAIN)),
    "build_nanogpt": ("log.txt", build_nanogpt(PLAIN)),
    "lingua": ("train.log", lingua(PLAIN)),
    "litgpt": ("out.log", litgpt(PLAIN)),
    "metaseq": ("train.log", metaseq(PLAIN)),
    "old_mmcv": ("20250801.log", old_mmcv(PLAIN)),
    "mmcv_json": ("20250801.log.json", mmcv_json(PLAIN)),
    "slowfast": ("stdout.log", slowfast(PLAIN)),
    "mae": ("log.txt", mae(PLAIN)),
    "gaussian_splatting": ("out.log", gaussian_splatting(PLAIN)),
    "pix2pix": ("loss_log.txt", pix2pix(PLAIN)),
    "basicsr": ("train.log", basicsr(PLAIN)),
    "deepspeed_chat": ("training.log", deepspeed_chat(PPO)),
    "tianshou": ("out.log", tianshou([replace(r, reward=0.1 + 2.0 * i) for i, r in enumerate(PLAIN)])),
    "pyg": ("out.log", pyg(PLAIN)),
    "fastai": ("out.log", fastai(PLAIN)),
    "skorch": ("out.log", skorch(PLAIN)),
    "trainer_with_evaluation": ("out.log", trainer_with_evaluation(PLAIN)),
    "rich_bar": ("out.log", rich_bar(PLAIN)),
    "accelerate_print": ("out.log", accelerate_print(PLAIN)),
    "tensor_print": ("out.log", tensor_print(PLAIN)),
    "bare_numbers": ("out.log", bare_numbers(PLAIN)),
    "wandb_summary": ("output.log", wandb_summary(PLAIN)),
    "monai": ("out.log", monai(PLAIN)),
    "lion": ("out.log", lion(PLAIN)),
    "verl_tagged": ("out.log", verl_tagged(PPO)),
    "gan": ("out.log", gan(GANS)),
    "float16_scale_search": ("out.log", trainer_with_evaluation(SCALE_SEARCH)),
    "smi_before": ("out.log", SMI + WARNED + pyg(PLAIN)),
    "named_nan": ("out.log", "Namespace(data='ImageNaN', nan_policy='skip', early_stop=inf)\nbest loss so far: inf\n" + llm_c(PLAIN)),
}  # fmt: skip
"""Name, file name and text of logs of runs with which nothing is wrong."""

MORE_SICK: Final[dict[str, tuple[str, str]]] = {
    "icefall_dead": ("train.log", icefall(DEAD)),
    "icefall_inf": ("train.log", icefall(from_step(PLAIN, 100, loss=inf))),
    "nnunet_dead": ("training_log.txt", nnunet(DEAD_FALLING)),
    "nnunet_from_the_first": ("training_log.txt", nnunet(from_step(FALLING[:30], 0, loss=nan))),
    "rsl_rl_value_inf": ("out.log", rsl_rl(from_step(PPO, 100, norm=inf))),
    "rsl_rl_dead": ("out.log", rsl_rl(DEAD_PPO)),
    "rsl_rl_ended": ("out.log", rsl_rl(PPO) + NORMAL_END),
    "internevo_norm_nan": ("out.log", internevo(from_step(PLAIN, 90, norm=nan))),
    "internevo_all_skipped": ("out.log", internevo([replace(r, skipped=max(0, i - 60)) for i, r in enumerate(PLAIN)])),
    "torchvision_stopped": ("out.log", torchvision_detection(PLAIN[:40]) + STOPPED),
    "vits_dead": ("train.log", vits(DEAD)),
    "nanotron_norm_nan": ("out.log", nanotron(from_step(PLAIN, 90, norm=nan))),
    "swift_zero_loss": ("logging.jsonl", swift(from_step(PLAIN, 90, loss=0.0, norm=nan))),
    "swift_grpo_dead": ("out.log", swift_grpo(from_step(PPO, 80, loss=nan, norm=nan))),
    "notebook_table_dead": ("out.log", notebook_table(DEAD_PPO)),
    "opennmt_dead": ("out.log", opennmt(DEAD)),
    "flair_dead": ("training.log", flair(DEAD)),
    "speechbrain_ended": ("log.txt", speechbrain(PLAIN[:40]) + SPEECHBRAIN_END),
    "speechbrain_dead": ("train_log.txt", speechbrain(DEAD)),
    "imagenet_dead": ("out.log", imagenet(DEAD)),
    "mnist_dead": ("out.log", mnist(DEAD)),
    "open_clip_dead": ("out.log", open_clip(DEAD)),
    "dit_dead": ("log.txt", dit(DEAD)),
    "openai_boxes_norm_nan": ("log.txt", openai_boxes(from_step(PLAIN, 90, norm=nan))),
    "llm_c_norm_nan": ("main.log", llm_c(from_step(PLAIN, 90, norm=nan))),
    "build_nanogpt_dead": ("log.txt", build_nanogpt(DEAD)),
    "lingua_norm_nan": ("train.log", lingua(from_step(PLAIN, 90, norm=nan))),
    "litgpt_dead": ("out.log", litgpt(DEAD)),
    "metaseq_norm_nan": ("train.log", metaseq(from_step(PLAIN, 90, norm=nan))),
    "old_mmcv_dead": ("20250801.log", old_mmcv(DEAD)),
    "mmcv_json_norm_nan": ("20250801.log.json", mmcv_json(from_step(PLAIN, 90, norm=nan))),
    "slowfast_dead": ("stdout.log", slowfast(DEAD)),
    "mae_dead": ("log.txt", mae(DEAD)),
    "gaussian_splatting_dead": ("out.log", gaussian_splatting(DEAD)),
    "pix2pix_dead": ("loss_log.txt", pix2pix(DEAD)),
    "basicsr_dead": ("train.log", basicsr(DEAD)),
    "deepspeed_chat_dead": ("training.log", deepspeed_chat(DEAD_PPO)),
    "tianshou_dead": ("out.log", tianshou(DEAD)),
    "pyg_dead": ("out.log", pyg(DEAD)),
    "fastai_dead": ("out.log", fastai(DEAD)),
    "skorch_dead": ("out.log", skorch(DEAD)),
    "trainer_eval_loss_nan": ("out.log", trainer_with_evaluation(from_step(PLAIN, 60, loss=0.0, norm=nan))),
    "rich_bar_dead": ("out.log", rich_bar(DEAD)),
    "accelerate_print_dead": ("out.log", accelerate_print(DEAD)),
    "tensor_print_dead": ("out.log", tensor_print(DEAD)),
    "bare_numbers_dead": ("out.log", bare_numbers(DEAD)),
    "wandb_summary_nan": ("output.log", wandb_summary(from_step(PLAIN, 119, loss=nan, norm=nan))),
    "monai_dead": ("out.log", monai(DEAD)),
    "lion_dead": ("out.log", lion(DEAD)),
    "verl_tagged_norm_nan": ("out.log", verl_tagged(from_step(PPO, 90, norm=nan))),
    "gan_dead": ("out.log", gan(from_step(GANS, 80, loss=nan))),
    "lightning_stopped_itself": ("out.log", rich_bar(PLAIN[:60]) + LIGHTNING_STOP),
    "a_child_failed": ("out.log", llm_c(PLAIN[:60]) + CHILD_FAILED),
    "segmentation_fault": ("out.log", llm_c(PLAIN[:60]) + SEGFAULT),
}  # fmt: skip
"""Name, file name and text of logs of runs with which something is."""
