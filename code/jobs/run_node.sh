#!/bin/bash
# Run a node's part of a job, and keep its output and the state of its GPUs in files of the node:
# FOLDER/NODE.out, FOLDER/NODE.err, and FOLDER/NODE.gpu (nvidia-smi, every ten seconds).
#   srun --ntasks-per-node=1 bash code/run_node.sh FOLDER COMMAND ...
set -euo pipefail

FILES=$1/$SLURMD_NODENAME
mkdir -p "$1"
shift

# Replaced as a whole, so that readers never see half a table.
watch_gpus() {
    while nvidia-smi >"$FILES.gpu.new" 2>&1; do
        mv "$FILES.gpu.new" "$FILES.gpu"
        sleep 10
    done
}
watch_gpus &
trap 'kill $! 2>/dev/null; rm -f "$FILES.gpu.new"' EXIT

# Both streams go to their files, and on to the job's log.
{ "$@" 2>&1 >&3 | tee "$FILES.err" >&2; } 3>&1 | tee "$FILES.out"
