"""A stand-in for Apex (github.com/NVIDIA/apex): what Megatron-LM uses of it, on virtual GPUs.

`extensions` holds the modules that Apex installs at the top level.
"""

__version__ = "0.1"
