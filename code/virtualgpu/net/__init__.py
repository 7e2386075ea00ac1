"""Communication between GPUs: links, collectives, and process groups that exchange times.

backend.py makes process groups for torch.distributed. group.py is such a group: operations.py has
its collectives, p2p.py its sends and receives, and work.py what they return. Ranks exchange
messages.py over wire.py; board.py finds hangs, and values.py carries small tensors' values along.
network.py and topology.py describe the links between ranks, collectives.py computes the time of a
collective on them, and nccl.py prints what NCCL would. This folder builds on core.
"""
