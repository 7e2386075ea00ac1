"""Communication between GPUs: links, collectives, and process groups that exchange times.

backend.py creates process groups for torch.distributed. group.py is such a group: operations.py has
its collectives, p2p.py its sends and receives, and work.py what they return. Ranks exchange
messages.py through messenger.py; job_store.py detects deadlocks, and values.py computes the values
of small tensors.
network.py and topology.py describe the links between ranks, collectives.py computes the time of a
collective on them, and nccl.py prints what NCCL would. This folder builds on core.
"""
