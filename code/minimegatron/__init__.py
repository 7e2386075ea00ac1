"""A Megatron-style GPT trainer, written to be read: data-parallel today, one idea per file."""
