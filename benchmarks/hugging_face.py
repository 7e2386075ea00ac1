"""The Hugging Face Trainer on the same model, for train_speed.py."""

from __future__ import annotations

import tempfile
import time

import torch
from plain_gpt import Shape


class HuggingFaceLoop:
    """One optimizer step per call; `seconds` is its time without the Trainer's startup."""

    def __init__(self, shape: Shape, texts: torch.Tensor, bf16: bool) -> None:
        import transformers
        from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

        transformers.logging.set_verbosity_error()
        self.shape, self.bf16 = shape, bf16
        self.data = [{"input_ids": text[:-1], "labels": text[:-1]} for text in texts]
        config = GPT2Config(vocab_size=shape.vocabulary, n_positions=shape.length,
                            n_embd=shape.hidden, n_layer=shape.layers, n_head=shape.heads,
                            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.model = GPT2LMHeadModel(config)
        self.folder = tempfile.TemporaryDirectory()
        self.arguments = TrainingArguments(
            self.folder.name, per_device_train_batch_size=shape.batch, max_steps=2, bf16=bf16,
            use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, learning_rate=1e-4, max_grad_norm=1.0, optim="adamw_torch_fused")

    def step(self) -> float:
        """Take two steps, time the second, and return their mean loss.

        Each call needs a new Trainer, which the first step warms up.
        """
        from transformers import PrinterCallback, Trainer, TrainerCallback

        seconds: list[float] = []

        class Clock(TrainerCallback):
            def on_step_begin(self, *_: object, **__: object) -> None:
                self.start = time.perf_counter()

            def on_step_end(self, *_: object, **__: object) -> None:
                seconds.append(time.perf_counter() - self.start)

        trainer = Trainer(self.model, self.arguments, train_dataset=self.data * 2,
                          callbacks=[Clock()])
        trainer.remove_callback(PrinterCallback)  # it would print a summary of every call
        loss = trainer.train().training_loss
        self.seconds = seconds[-1]
        return loss
