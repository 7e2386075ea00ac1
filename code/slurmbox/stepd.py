"""Become slurmstepd after adopting the job's orphans; slurmd starts this in its place.

Otherwise, a double-forked process would leave the tree in which Slurm looks for the job's
processes, and scancel would miss it. It runs without site-packages, so it imports the standard
library only.
"""

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
