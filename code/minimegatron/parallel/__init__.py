"""The process grid, data parallelism, and pipeline parallelism."""
