"""The program of docs/virtualrun.md that generates tokens."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                     num_attention_heads=32, num_key_value_heads=8, vocab_size=128256)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompt = torch.randint(config.vocab_size, (4, 512), device="cuda")
output = model.generate(prompt, max_new_tokens=1000, do_sample=True, eos_token_id=2, pad_token_id=0)
print(tuple(output.shape), "first new token", output[0, 512].item())
