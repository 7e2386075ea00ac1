#!/bin/bash
# Run a command on one core: a node's task 0 on the first core, its task 1 on the second, and so on.
#   srun bash code/one_core.sh COMMAND ...
cores=($(python3 -c 'import os; print(*sorted(os.sched_getaffinity(0)))'))
exec taskset --cpu-list "${cores[$SLURM_LOCALID]}" "$@"
