"""The model: GPT's layers, their tensor-parallel form, and the operations they consist of."""
