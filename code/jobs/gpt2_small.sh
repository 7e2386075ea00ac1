#!/bin/bash
# GPT-2 small (124M parameters, 12 heads) on one node with two virtual GPUs. Flags choose the layout.
# The log shows the time and the memory that real GPUs would take.
# From the workspace:
#   sbatch code/gpt2_small.sh                                           data-parallel
#   sbatch code/gpt2_small.sh --tensor-model-parallel-size 2            tensor-parallel
#   sbatch code/gpt2_small.sh --pipeline-model-parallel-size 2          a pipeline of two stages
#   RANKS=1 sbatch --gpus-per-node=1 code/gpt2_small.sh                 one GPU
#SBATCH --job-name=gpt2_small
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

# A rank for each GPU. At a site without GPUs, Slurm does not say how many there are.
RANKS_PER_NODE=${RANKS:-${SLURM_GPUS_ON_NODE:-2}}
NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets

MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 20"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--log-interval 1 --eval-iters 0 --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# One launcher starts this node's ranks, one for each GPU.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --standalone --nproc_per_node "$RANKS_PER_NODE" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
