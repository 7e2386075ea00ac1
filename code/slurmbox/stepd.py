"""slurmd starts this in place of slurmstepd: adopt the job's orphans, then become slurmstepd.

Without it a double-forked process of a job leaves the tree in which Slurm looks for the job's
processes, and scancel would miss it. Standard library only: runs without site packages.
"""

import ctypes
import os
import sys

PR_SET_CHILD_SUBREAPER = 36

ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
