"""`nvidia-smi` for the cluster's virtual GPUs, from the status files of the ranks.

It must start fast, so nothing here imports torch or any other third-party package.
"""
