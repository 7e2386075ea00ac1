#!/bin/bash
# Case D of lab 03: GPT-2 on two nodes.
# From the workspace:  sbatch code/case_d.sh [more flags of the trainer]
#SBATCH --job-name=case_d
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1 VIRTUAL_GPU=v100
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash "$LAB_HOME/code/case_d_node.sh" \
    torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" \
    --rdzv_id "$SLURM_JOB_ID" "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" "$@"
