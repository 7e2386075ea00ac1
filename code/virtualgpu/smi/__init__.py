"""`nvidia-smi` for virtual GPUs: its options, its formats, and the fields that are modeled.

It must start fast, so nothing here imports torch or any other third-party package.
"""
