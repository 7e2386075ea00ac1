"""`nvidia-smi` for the cluster's virtual cards: the familiar output, from what ranks say they do.

It must start at once, so nothing here imports torch, or anything that is not Python's or ours.
"""
