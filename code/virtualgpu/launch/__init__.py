"""virtualrun: start a program on GPUs that you do not have, one process per rank or one for all.

Builds on all other folders of this package.
"""
