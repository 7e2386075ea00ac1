#!/bin/bash
# GPT-2 small (124M parameters) on two nodes with two GPUs each, data-parallel over all four.
# The GPUs are virtual: the log shows the time and memory that real ones would take.
# Historical: the script of the classic course had 32 attention heads (--num-attention-heads 32),
# which multiplies the memory of the attention scores by 2.7.
# From the workspace:  sbatch code/virtual_v100.sh [more flags of the trainer]
#SBATCH --job-name=virtual_v100
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

RANKS_PER_NODE=${SLURM_GPUS_ON_NODE:-2}  # not set at a site without GPUs
NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets

MODEL="--num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
# Per rank; the global batch is four times that.
BATCH="--micro-batch-size 2 --train-iters 20"
LAYOUT="--tensor-model-parallel-size 1 --pipeline-model-parallel-size 1"
OPTIMIZER="--lr 1.5e-4 --min-lr 1e-5 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
OUTPUT="--log-interval 5 --eval-iters 0 --log-throughput \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# The ranks rendezvous at the first node; the port follows from the job ID, so jobs do not collide.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

# One task per node: its launcher knows which node it is on and starts that node's ranks.
# --device virtual: the card that each node declares (lab cluster up --gpus v100:2).
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$RANKS_PER_NODE" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual $LAYOUT $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
