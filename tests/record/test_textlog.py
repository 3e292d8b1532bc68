# ruff: noqa: E501
"""Text logs by pattern: the lines people's loops and the known trainers print."""

from __future__ import annotations

import pytest

from nantrap.record.textlog import TextLog, as_number

LINES = [
    ("Ep 15/80:  45%|████▌  | 268/594 [01:52<02:17,  2.37it/s, loss=2.341, lr=1.23e-04]", {"loss": "2.341", "lr": "1.23e-04", "step": 8584, "epoch": 15.0}),
    ("step 100 | loss 2.3 | lr 1e-4", {"loss": "2.3", "lr": "1e-4", "step": 100}),
    ("step   100/19073 | loss: 3.29 | lr 6.0e-4 | norm: 0.8 | tok/sec: 15,000", {"loss": "3.29", "norm": "0.8", "tok/sec": "15000", "lr": "6.0e-4", "step": 100}),
    ("{'loss': 1.2, 'grad_norm': nan, 'learning_rate': 5e-05, 'epoch': 0.1}", {"loss": "1.2", "grad_norm": "nan", "learning_rate": "5e-05", "epoch": 0.1}),
    ("{'loss': '1.2', 'epoch': '0.1'}", {"loss": "1.2", "epoch": 0.1}),
    ("iter 100: loss 2.3123, time 120.5ms, mfu 3.10%", {"loss": "2.3123", "mfu": "3.10", "step": 100}),
    ("step 100: train loss 2.3, val loss 2.4", {"train_loss": "2.3", "val_loss": "2.4", "step": 100}),
    (" iteration  100/ 5000 | learning rate: 1.500E-05 | lm loss: 9.3E+00 | loss scale: 65536.0 | grad norm: 1.2 | number of nan iterations:   0 |",
     {"learning_rate": "1.500E-05", "lm_loss": "9.3E+00", "loss_scale": "65536.0", "grad_norm": "1.2", "number_of_nan_iterations": "0", "step": 100}),
    ("2020-01-01 10:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=12.3, gnorm=3.2", {"loss": "12.3", "gnorm": "3.2", "step": 100, "epoch": 1.0}),
    ("2020-01-01 10:00:00,123 - mmdet - INFO - Epoch [2][50/100]\tlr: 1.978e-03, eta: 12:23:03, loss: 1.2", {"lr": "1.978e-03", "loss": "1.2", "step": 150, "epoch": 2.0}),
    ("[01/01 10:00:00 d2.utils.events]:  eta: 0:10:00  iter: 19  total_loss: 2.1  lr: 0.0005  max_mem: 2500M", {"total_loss": "2.1", "lr": "0.0005", "max_mem": "2500", "step": 19}),
    ("100/1875 [>....] - ETA: 3s - loss: 0.5 - accuracy: 0.8", {"loss": "0.5", "accuracy": "0.8", "step": 100}),
    ("\x1b[31mstep: 10  \x1b[32mloss:  8.1  \x1b[33mgrad_norm: 1.2\x1b[0m", {"loss": "8.1", "grad_norm": "1.2", "step": 10}),
    ("Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.300000", {"Loss": "2.300000", "step": 640, "epoch": 1.0}),
    ("Epoch: [3][ 120/5004]\tLoss 2.3e+00 (2.5e+00)\tAcc@1  12.5 ( 13.0)", {"Loss": "2.3e+00", "Acc@1": "12.5", "step": 10128, "epoch": 3.0}),
    ("[Epoch 1/10] [Batch 20/100] [D loss: 0.3] [G loss: -inf]", {"D_loss": "0.3", "G_loss": "-inf", "step": 20, "epoch": 1.0}),
    ("loss_simple: nan, loss_vlb: 0.00000, total_loss: nan", {"loss_simple": "nan", "loss_vlb": "0.00000", "total_loss": "nan"}),
    ("INFO:root:Epoch 3 Step 100 Loss -nan", {"Loss": "-nan", "step": 100, "epoch": 3.0}),
    ("Training loss at step 200: 1.5 (lr = 3e-4)", {"lr": "3e-4", "Training_loss": "1.5", "step": 200}),
    ("Step 300 - Loss: 1.#QNAN, Grad Norm: inf, LR: 0.00012", {"Loss": "1.#QNAN", "Grad_Norm": "inf", "LR": "0.00012", "step": 300}),
    ("2026-11-16 15:04:12,123 INFO [train:39] step=10/200 loss=0.4545 lr=1.00e-03 elapsed=0:01:01 mem=12.3GB", {"loss": "0.4545", "lr": "1.00e-03", "mem": "12.3", "step": 10}),
    ("Epoch 5: train_loss=0.5 val_loss=0.6 acc=91.2%", {"train_loss": "0.5", "val_loss": "0.6", "acc": "91.2", "epoch": 5.0}),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), LINES, ids=[line.strip()[:24] for line, _ in LINES])
def test_a_line(line: str, expected: dict[str, object]) -> None:
    log = TextLog()
    numbers = {name: as_number(value) if isinstance(value, str) else value for name, value in expected.items()}
    assert str(log.records([line, line])) == str([numbers, numbers])  # the second time by its shape


@pytest.mark.parametrize(
    "line",
    [
        "learning_rate: 1e-4",
        "Loaded 1000 images in 3.2 s, version 2.13.0",
        "batch_size: 32",
        "2026-11-16 15:04:12,123 INFO [train:36] batch_size=32 lr=0.001 epochs=10",
        "Pred shape: torch.Size([32, 26, 37])",
        "",
    ],
)
def test_other_lines_are_no_records(line: str) -> None:
    log = TextLog()
    assert log.records([line]) == []
    assert log.notes == []


def test_trouble_is_noted_with_its_place() -> None:
    log = TextLog()
    log.records(
        ["step 7 loss 1.0", "   h_out: NaN=1024, Inf=0", "fine", "ValueError: NaN detected in the forward pass"]
    )
    assert [(note.step, note.line, note.text) for note in log.notes] == [
        (7, 2, "h_out: NaN=1024, Inf=0"),
        (7, 4, "ValueError: NaN detected in the forward pass"),
    ]


def test_steps_counted_again_in_every_epoch_become_one_count() -> None:
    log = TextLog()
    lines = [f"Epoch {epoch} Step {step} Loss 1.0" for epoch in (1, 2, 3) for step in (0, 10, 20)]
    assert [record["step"] for record in log.records(lines)] == [0, 10, 20, 21, 31, 41, 42, 52, 62]


def test_a_global_step_stays_what_it_is() -> None:
    log = TextLog()
    lines = [f"Epoch {step // 10} Step {step} Loss 1.0" for step in range(0, 40, 5)]
    assert [record["step"] for record in log.records(lines)] == list(range(0, 40, 5))


def test_an_epoch_in_its_own_line() -> None:
    log = TextLog()
    lines = ["Epoch 1/2", "5/10 [==>] - loss: 2.0", "10/10 [==>] - loss: 1.9", "Epoch 2/2", "5/10 [==>] - loss: 1.0"]
    assert [(record["epoch"], record["step"]) for record in log.records(lines)] == [(1.0, 5), (1.0, 10), (2.0, 15)]
