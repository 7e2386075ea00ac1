"""Watching jobs: what runs now (`lab top`), and a page about one of them (`lab report`).

Slurm says what was asked and how it stands (slurm.py), the ranks' own files what each of them does
(ranks.py), the log what went wrong and why (causes.py) and which configuration was read (asked.py).
picture.py puts them together, liveness.py gives every rank one word.
"""
