"""virtualrun: run a program on GPUs that you do not have, with one process per rank or one for all.

command.py is the console script, and functions.py runs a function instead of a script. cluster.py
describes the GPUs, ranks.py forks and monitors one process per rank, and process.py turns a process
into a rank. Builds on all other folders of this package.
"""
