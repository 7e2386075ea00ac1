#!/bin/bash
# Case E of lab 03: code/evaluate.py on two nodes, a program that hangs.
# From the workspace:  sbatch code/case_e.sh
#SBATCH --job-name=case_e
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nnodes 2 --nproc_per_node 2 \
    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$((20000 + SLURM_JOB_ID % 10000))" \
    --rdzv_id "$SLURM_JOB_ID" "$LAB_HOME/code/evaluate.py"
