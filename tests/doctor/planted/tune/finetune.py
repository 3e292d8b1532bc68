import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

NAME = "gpt2"


def main(dataset):
    model = AutoModelForCausalLM.from_pretrained(NAME)
    arguments = TrainingArguments(
        output_dir="out", bf16=True, learning_rate=1e-5, max_steps=500, logging_nan_inf_filter=False
    )
    Trainer(model=model, args=arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    main(torch.load("dataset.pt"))
