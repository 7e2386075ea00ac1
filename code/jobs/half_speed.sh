#!/bin/bash
# A small GPT on one node, data-parallel over two ranks, each on a core of its own.
# From the workspace:  sbatch code/half_speed.sh [more flags of the trainer]
#SBATCH --job-name=half_speed
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

RANKS_PER_NODE=2
NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/bpe-4096

MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 100"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 10 --eval-interval 50 --eval-iters 4 \
        --save $LAB_HOME/megatron/checkpoints/$NAME --save-interval 100 \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# one_core.sh keeps processes from taking cores from each other.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash "$LAB_HOME/code/one_core.sh" torchrun --standalone --nproc_per_node "$RANKS_PER_NODE" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
