#!/bin/bash
# A small model of Llama's kind on two nodes, trained for real on the CPU: tensor-parallel inside a
# node, data-parallel between.
# From the workspace:  sbatch code/llama_small.sh [more flags of the trainer]
#SBATCH --job-name=llama_small
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:20:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

RANKS_PER_NODE=2
NAME=$SLURM_JOB_NAME
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / RANKS_PER_NODE))
DATA=$LAB_HOME/data/bpe-4096

# Two query heads share a key and a value head, so a cache of keys and values is half as large.
MODEL="--num-layers 4 --hidden-size 128 --num-attention-heads 4 \
       --seq-length 128 --max-position-embeddings 256 \
       --group-query-attention --num-query-groups 2 --swiglu --normalization RMSNorm \
       --position-embedding-type rope --disable-bias-linear \
       --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0"
BATCH="--micro-batch-size 8 --global-batch-size 16 --train-iters 200"
# All-reduces in every layer stay on a node; between nodes, gradients are averaged once per step.
LAYOUT="--tensor-model-parallel-size 2"
OPTIMIZER="--lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.1 --adam-beta2 0.95 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 20 --eval-interval 200 --eval-iters 4 \
        --save $LAB_HOME/megatron/checkpoints/$NAME --save-interval 200 \
        --tensorboard-dir $LAB_HOME/megatron/tensorboard/$NAME"

# The ranks rendezvous at the first node; the port follows from the job ID, so jobs do not collide.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

# One task per node: its launcher knows which node it is on and starts that node's ranks.
srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node "$RANKS_PER_NODE" \
    --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $LAYOUT $MODEL $BATCH $OPTIMIZER $TEXT $OUTPUT "$@"
