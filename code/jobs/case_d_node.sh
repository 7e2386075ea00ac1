#!/bin/bash
# Run a command on one of the nodes of case D in lab 03.
#   srun bash code/case_d_node.sh COMMAND ...
# The second node of this partition is an old one with T4 GPUs, and nobody remembers that.
if [ "$SLURM_NODEID" = 1 ]; then export VIRTUAL_GPU=t4; fi
exec "$@"
