"""Hugging Face's Trainer trains a small GPT-2 or Llama on random tokens."""

import sys

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

if sys.argv[1] == "gpt2":
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=256, n_head=4))
else:
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=32000))
tokens = torch.randint(0, model.config.vocab_size, (32, 128))
arguments = TrainingArguments(
    "out", max_steps=3, per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True,
    logging_steps=1, save_strategy="no", report_to="none")
trainer = Trainer(model, arguments, train_dataset=[
    {"input_ids": row, "labels": row} for row in tokens])
done = trainer.train()
print(f"rank {arguments.process_index} of {arguments.world_size}: {done.global_step} steps")
