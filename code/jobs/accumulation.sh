#!/bin/bash
# A small GPT on one node: each of two ranks adds up the gradients of eight micro-batches.
# From the workspace:  sbatch code/accumulation.sh [more flags of the trainer]
#SBATCH --job-name=accumulation
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

RANKS_PER_NODE=2
NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / RANKS_PER_NODE))
DATA=$LAB_HOME/data/bpe-4096

MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256"
# 2 ranks x 8 micro-batches x 1 sample: the step of a big batch in the memory of a small one.
BATCH="--micro-batch-size 1 --global-batch-size 16 --train-iters 100"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 10 --eval-interval 50 --eval-iters 4 \
        --save $LAB_HOME/megatron/checkpoints/$NAME --save-interval 100 \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# One launcher starts this node's ranks; --standalone needs no rendezvous address.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    torchrun --standalone --nproc_per_node "$RANKS_PER_NODE" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
