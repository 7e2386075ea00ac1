"""`nvidia-smi` for the cluster's virtual GPUs: the familiar output, from what the ranks report.

It must start at once, so nothing here imports torch, or anything that is not Python's or ours.
"""
