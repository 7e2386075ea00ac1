"""A small Llama and GPT-2 of Hugging Face transformers."""
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

kind = sys.argv[1]
if kind == "llama":
    config = LlamaConfig(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4,
                         num_attention_heads=16, num_key_value_heads=4, vocab_size=32000)
    model = LlamaForCausalLM(config)
else:
    config = GPT2Config(n_layer=4, n_embd=768, n_head=12)
    model = GPT2LMHeadModel(config)
model = model.to("cuda", torch.bfloat16)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(2):
    tokens = torch.randint(0, config.vocab_size, (2, 512), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    print(f"step {step}: loss {loss.item():.3f}, {torch.cuda.max_memory_allocated() >> 20} MiB")
