"""Convert checkpoints from and to Hugging Face's format: `lab convert-checkpoint`.

families.py knows the settings, names, and matrices of GPT-2, Llama, and Qwen3 there. convert.py
reads and writes both formats with it, and tokenizers_of.py the tokenizer beside a model. cli.py is
the command. code/generate.py opens a folder of Hugging Face's through `open_hugging_face`.

The package may import labcore and the trainer (minimegatron). Begin with convert.py; the user's
guide is docs/llama.md.
"""
