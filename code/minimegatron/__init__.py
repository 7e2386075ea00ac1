"""A Megatron-style GPT trainer, written to be read: one idea per file."""
