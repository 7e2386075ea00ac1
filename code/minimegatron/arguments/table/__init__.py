"""The table of flags: every flag of the trainer once, grouped by topic.

A flag is a field of one of the dataclasses here, declared with `flag(...)`: its name, type and
default, its help text, its bounds, the flags it needs, and what it affects. The parser, the checks,
the script checks' comparisons, the estimator's cache and the test for a matching checkpoint are all
derived from these declarations. To add a flag, add one field here and write the code that uses it.

    flag.py       how a flag is declared and read
    effects.py    what depends on a flag
    bounds.py     intervals of accepted values
    training.py   the model, batches, and optimization
    parallel.py   devices, parallelism, activation recomputation, and derived fields
    files.py      data, checkpoints, and reports
    planning.py   --estimate (not of the trainer itself)
"""
