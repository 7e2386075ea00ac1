#!/bin/bash
# GPT in DeepSpeed's pipeline: four stages on two nodes, one rank each, 1F1B.
# From the workspace:  sbatch code/examples/pipe_dream.sh [flags of pipe_dream.py]
# Two stages:  sbatch --ntasks-per-node=1 code/examples/pipe_dream.sh --balance 7,7
#SBATCH --job-name=pipe_dream
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=1
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1  # ranks share the cores

# The program reads its rank and the rendezvous address from Slurm's variables.
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python "$LAB_HOME/code/examples/pipe_dream.py" "$@"
