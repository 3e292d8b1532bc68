"""One callback guards a transformers Trainer. One example masks every token, and attention over nothing is NaN.

Run it: python examples/transformers_trainer.py   (needs nantrap[transformers])
"""

from __future__ import annotations

import tempfile

import torch
import transformers
from torch import Tensor, nn

import nantrap.transformers


class Pooler(nn.Module):
    """A small classifier: attention of one query over the tokens of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.query = nn.Parameter(torch.randn(16) / 4)
        self.out = nn.Linear(16, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        tokens = self.embed(input_ids)
        scores = (tokens @ self.query).masked_fill(attention_mask == 0, float("-inf"))
        logits = self.out((scores.softmax(dim=-1)[..., None] * tokens).sum(dim=1))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


torch.manual_seed(0)
texts = [
    {"input_ids": torch.randint(0, 50, (12,)), "attention_mask": torch.ones(12, dtype=torch.long), "labels": i % 2}
    for i in range(32)
]
texts[13]["attention_mask"] = torch.zeros(12, dtype=torch.long)  # an empty text

model = Pooler()
guard = nantrap.transformers.Guard()
with tempfile.TemporaryDirectory() as folder:
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            folder, max_steps=8, per_device_train_batch_size=4, report_to=[], save_strategy="no", use_cpu=True,
            disable_tqdm=True, logging_steps=8,
        ),
        train_dataset=texts,
        callbacks=[guard],  # the one line
    )  # fmt: skip
    trainer.train()

summary = guard.summary
print(f"applied {summary.applied} of {summary.steps} steps")
print(f"the model is finite: {all(bool(p.isfinite().all()) for p in model.parameters())}")
