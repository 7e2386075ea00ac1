"""What happens between GPUs: links, collectives, and process groups that exchange times.

group.py is a process group whose messages carry clocks instead of tensors. network.py and
topology.py describe the links between two ranks, collectives.py says how long a collective takes on
them, and nccl.py what NCCL would print about it. Builds on core.
"""
