#!/bin/bash
# A long training on one node in short jobs: each saves before its time is up, queues itself again
# and resumes where it stopped, until --train-iters are done.
# From the workspace:  sbatch code/resume.sh [more flags of the trainer]
# `scancel JOB` ends it for good, without saving; `scancel --signal=TERM JOB` lets it save.
#SBATCH --job-name=resume
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=2
#SBATCH --time=00:05:00
#SBATCH --signal=TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
DATA=$LAB_HOME/data/bpe-4096
CHECKPOINTS=$LAB_HOME/megatron/checkpoints/$NAME
LOG=$LAB_HOME/megatron/logs/${NAME}_$SLURM_JOB_ID.txt  # the --output above
TRACKER=$CHECKPOINTS/latest_checkpointed_iteration.txt

MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 1000"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 10 --eval-interval 500 --eval-iters 4 \
        --save $CHECKPOINTS --load $CHECKPOINTS --save-interval 100 --exit-signal-handler \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# Slurm starts the ranks itself: its SIGTERM reaches them alone, and the trainer's exit code is the
# job's. (torchrun would answer the signal too, end the ranks and report a failure.)
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT WORLD_SIZE=$SLURM_NTASKS
before=$(cat "$TRACKER" 2>/dev/null || echo 0)
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python -u "$@"' rank \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"

# Stopped by the signal, and further than before: the same job once more, in the same log.
if tail -n 3 "$LOG" | grep -q "exiting program after receiving SIGTERM" &&
    [ "$(cat "$TRACKER")" -gt "$before" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
