"""virtualrun: start a program on GPUs that you do not have, one process per rank or one for all.

command.py is the console script, and functions.py runs a function instead of a script. cluster.py
says which GPUs there are, ranks.py forks and watches one process per rank, and process.py makes a
process one of them. Builds on all other folders of this package.
"""
