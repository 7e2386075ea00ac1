#!/bin/bash
# GPT in torchgpipe's pipeline: four stages, which are threads of one process on one node.
# From the workspace:  sbatch code/examples/gpipe.sh [flags of gpipe.py]
#SBATCH --job-name=gpipe
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1  # a stage is a thread, and each computes on one core

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" python "$LAB_HOME/code/examples/gpipe.py" "$@"
