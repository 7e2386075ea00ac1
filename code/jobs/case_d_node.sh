#!/bin/bash
# The second node of this partition is an old one with T4 GPUs, and nobody remembers that.
if [ "$SLURM_NODEID" = 1 ]; then export VIRTUAL_GPU=t4; fi
PORT=$((20000 + SLURM_JOB_ID % 10000))
exec torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint "$1:$PORT" \
    --rdzv_id "$SLURM_JOB_ID" "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" "${@:2}"
