"""GRPO, RLOO or DPO of TRL on a tiny language model, with a fault: `trl_faults.py grpo nan_reward FOLDER`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

METHOD, FAULT, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
WORDS = ["<pad>", "<eos>", "<unk>", *(f"w{i}" for i in range(61))]
COMMON = {
    "output_dir": str(FOLDER / "out"), "max_steps": 5, "logging_steps": 1, "report_to": "none", "use_cpu": True,
    "save_strategy": "no", "learning_rate": 1e-3, "bf16": False, "disable_tqdm": True, "seed": 0,
}  # fmt: skip
REWARDS = {"nan_reward": math.nan, "inf_reward": math.inf, "none_reward": None}
calls = 0


def length_reward(completions: list[str], **_: Any) -> list[float | None]:
    global calls
    calls += 1
    rewards: list[float | None] = [len(text.split()) % 5 + 0.1 * i for i, text in enumerate(completions)]
    if calls == 3 and FAULT in REWARDS:
        rewards[2] = REWARDS[FAULT]
    return [1.0] * len(rewards) if FAULT == "no_variance" else rewards


def spoil(trainer: Any, out: dict[str, Any]) -> None:
    """A fault in what a rollout gave, in the third step."""
    if trainer.state.global_step != 2:
        return
    if FAULT == "minus_inf_logprob":
        out["ref_per_token_logps"][1, 2] = -math.inf
    if FAULT == "label_out_of_range":
        out["completion_ids"][1, 2] = 700
    if FAULT == "normalised_by_zero":
        nothing = out["advantages"] * 0
        out["advantages"] = nothing / nothing.std()


def of_rollouts(base: type) -> type:
    class Trainer(base):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            out = super()._generate_and_score_completions(inputs)
            spoil(self, out)
            return out

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            loss = super()._compute_loss(model, inputs)
            if FAULT == "empty_mask" and self.state.global_step == 2:
                kept = inputs["completion_mask"] * 0
                loss = loss + (model(input_ids=inputs["completion_ids"]).logits.mean(-1) * kept).sum() / kept.sum()
            return loss

    return Trainer


class Plant(TrainerCallback):  # type: ignore[misc]
    """A fault in the reference model, in the third step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        with torch.no_grad():
            if state.global_step == 2 and FAULT in ("reference_inf", "reference_nan"):
                weight = trainer.ref_model.model.layers[0].mlp.down_proj.weight
                weight[3, 5] = math.inf if FAULT == "reference_inf" else math.nan


torch.set_num_threads(1)
torch.manual_seed(0)
words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
)
shape = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=1,
)  # fmt: skip
LlamaForCausalLM(shape).save_pretrained(FOLDER / "model")
tokenizer.save_pretrained(FOLDER / "model")
policy = AutoModelForCausalLM.from_pretrained(FOLDER / "model")
if METHOD == "dpo":
    pairs = [
        {"prompt": f"w{i} w{i + 1}", "chosen": f" w{i + 2} w{i + 3} w{i + 4}", "rejected": f" w{i + 5} w{i + 9}"}
        for i in range(32)
    ]
    config = DPOConfig(per_device_train_batch_size=4, **COMMON)
    reference = AutoModelForCausalLM.from_pretrained(FOLDER / "model")
    trainer = DPOTrainer(
        policy, reference, config, train_dataset=Dataset.from_list(pairs), processing_class=tokenizer,
        callbacks=[Plant()],
    )  # fmt: skip
else:
    base, configured = (GRPOTrainer, GRPOConfig) if METHOD == "grpo" else (RLOOTrainer, RLOOConfig)
    config = configured(
        per_device_train_batch_size=8, num_generations=4, max_completion_length=6, beta=0.04,
        temperature=1e-45 if FAULT == "temperature_0" else 1.0, **COMMON,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": [f"w{i} w{i + 1} w{i + 2}" for i in range(16)]})
    Trainer = of_rollouts(base)
    trainer = Trainer(
        model=policy, reward_funcs=[length_reward], args=config, train_dataset=prompts, processing_class=tokenizer,
        callbacks=[Plant()],
    )  # fmt: skip
trainer.train()
print("end", trainer.state.global_step, sum(each.double().sum().item() for each in policy.parameters()))
