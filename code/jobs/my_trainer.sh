#!/bin/bash
# Your own trainer: a small GPT on two nodes with two data-parallel ranks each, on the CPU.
# It needs mytrainer/ddp.py, or the files of lab 08 and a sharding strategy. From the workspace:
#     sbatch code/my_trainer.sh [more flags]
#SBATCH --job-name=my_trainer
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

RANKS_PER_NODE=2
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / RANKS_PER_NODE))
DATA=$LAB_HOME/data/bpe-4096

MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 \
       --attention-dropout 0 --hidden-dropout 0"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 100"
# With pipeline stages, your executor runs all backward passes in one call, so nothing overlaps.
[[ "$*" == *--pipeline-model-parallel-size* ]] || BATCH+=" --overlap-grad-reduce"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 10 --tensorboard-dir $LAB_HOME/megatron/tensorboard/$SLURM_JOB_NAME"

# The launchers rendezvous on the first node. The port depends on the job, so jobs do not collide.
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 10000))

# One launcher per node. With a c10d rendezvous, a launcher need not know its node's rank.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$RANKS_PER_NODE" \
    --rdzv_backend c10d --rdzv_endpoint "$FIRST_NODE:$PORT" --rdzv_id "$SLURM_JOB_ID" \
    "$LAB_HOME/code/my_trainer.py" --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
