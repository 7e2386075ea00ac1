"""A part that raises an exception."""

from benchmarks.gpu.result import Result


def run(quick: bool) -> Result:
    """Raise what PyTorch raises without memory."""
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
