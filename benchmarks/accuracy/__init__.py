"""Virtual GPUs against published measurements.

    python -m benchmarks.accuracy

Every set of rows is a JSON file in benchmarks/published, with its source.
"""
