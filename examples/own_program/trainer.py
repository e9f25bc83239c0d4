"""Train GPT-2 (124 M parameters, random weights, random tokens) with the Trainer of transformers in bf16.

    python trainer.py

The program knows nothing of profpipe. It prints the time of a step after the first third.
"""

import argparse
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count, length, vocabulary):
        self.rows = torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class StepTime(TrainerCallback):
    """Print the mean time of a step after the first third of the steps."""

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == state.max_steps // 3:
            self.began, self.first = now(), state.global_step
        elif state.global_step == state.max_steps:
            print(f"{1e3 * (now() - self.began) / (state.global_step - self.first):.2f} ms per step")


def now():
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    config = GPT2Config(n_layer=args.layers)
    settings = TrainingArguments(
        "trained", max_steps=args.steps, per_device_train_batch_size=args.batch, bf16=torch.cuda.is_available(),
        logging_steps=20, save_strategy="no", report_to=[], disable_tqdm=True, dataloader_num_workers=2,
    )  # fmt: skip
    data = Tokens(args.steps * args.batch, args.length, config.vocab_size)
    Trainer(GPT2LMHeadModel(config), settings, train_dataset=data, callbacks=[StepTime()]).train()


if __name__ == "__main__":
    main()
