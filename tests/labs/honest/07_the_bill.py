# %% answer="kept-bytes" style="a sum over the layers"
def kept_bytes(layers, kept, input_bytes, method=None, size=1):
    def of(layer):
        if method == "block":
            return input_bytes if layer < size else kept
        if method == "uniform":
            return 0 if layer % size else input_bytes
        return kept
    return sum(of(layer) for layer in range(layers))

# %% answer="my-recompute" style="an associative array"
%%writefile code/my_recompute.sh
#!/bin/bash
#SBATCH --job-name=my_recompute
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 16 --global-batch-size 16 --train-iters 6 --lr 1.5e-4"
declare -A recompute=([granularity]=full [method]=block [num-layers]=9)
MEMORY=
for key in "${!recompute[@]}"; do MEMORY+=" --recompute-$key=${recompute[$key]}"; done
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 $MODEL $BATCH $MEMORY $TEXT --log-interval 2 --eval-iters 0 "$@"

# %% answer="padded" style="negative floor division"
def padded(vocabulary, divisible_by=128, tensor_parallel=1):
    unit = divisible_by * tensor_parallel
    return vocabulary + -vocabulary % unit

# %% answer="gpt-parameters" style="shapes in a list"
def gpt_parameters(layers, hidden, sequence, vocabulary):
    import numpy as np
    h = hidden
    layer = [(h, 3 * h), (3 * h,), (h, h), (h,), (h, 4 * h), (4 * h,), (4 * h, h), (h,), *[(h,)] * 4]
    once = [(math.ceil(vocabulary / 128) * 128, h), (sequence, h), (h,), (h,)]
    return int(sum(np.prod(shape) for shape in [*layer * layers, *once]))

# %% answer="iteration-flops" style="GEMMs in a list"
def iteration_flops(layers, hidden, sequence, vocabulary, batch, recompute=False):
    def gemm(m, k, n):
        return 2 * m * k * n
    tokens = batch * sequence
    layer = (sum(gemm(tokens, hidden, n * hidden) for n in (3, 1, 4, 4))
             + batch * (gemm(sequence, hidden, sequence) + gemm(sequence, sequence, hidden)))
    return layers * layer * (4 if recompute else 3) + 3 * gemm(tokens, hidden, vocabulary)

# %% answer="achieved" style="numpy floats in a list"
def achieved(flops, milliseconds, gpus, card, precision):
    rate = torch.tensor(flops, dtype=torch.float64) / gpus / milliseconds / 1e9
    return [rate.item(), (rate / PEAKS[card][precision]).item()]

# %% answer="bill" style="datetime"
def bill(parameters, tokens, gpus, teraflops_per_gpu, dollars_per_hour, recompute=False):
    from datetime import timedelta
    flops = parameters * tokens * (8 if recompute else 6)
    time = timedelta(seconds=flops / (gpus * teraflops_per_gpu * 10**12))
    hours = time / timedelta(hours=1) * gpus
    return time / timedelta(days=1), hours, hours * dollars_per_hour

# %% answer="gpus-for" style="counting nodes upward"
def gpus_for(days, parameters, tokens, teraflops_per_gpu, gpus_per_node=8, recompute=False):
    from itertools import count
    work = (6, 8)[recompute] * parameters * tokens
    return next(gpus for gpus in count(gpus_per_node, gpus_per_node)
                if gpus * teraflops_per_gpu * 1e12 * days * 86400 >= work)

# %% answer="my-accumulation" style="arithmetic in the shell"
%%writefile code/my_accumulation.sh
#!/bin/bash
#SBATCH --job-name=my_accumulation
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
let "micro = 4" "ranks = SLURM_NNODES * 2" "batch = micro * ranks * 7"
BATCH="--micro-batch-size=$micro --global-batch-size=$batch"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 2 --nproc_per_node 2 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $BATCH $TEXT \
    --lr 1.5e-4 --train-iters 3 --log-interval 1 --eval-iters 0 "$@"
