# %% answer="tensor-parallel" style="Megatron's f and g as autograd functions"
def shard(first, second):
    parts = dist.get_world_size()
    return (torch.tensor_split(first, parts, dim=1)[dist.get_rank()],
            torch.tensor_split(second, parts)[dist.get_rank()])


def tensor_parallel_step(x, y, first, second):
    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor.view_as(tensor)

        @staticmethod
        def backward(ctx, gradient):
            gradient = gradient.clone()
            dist.all_reduce(gradient, async_op=True).wait()
            return gradient

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            result = tensor.clone()
            dist.all_reduce(result, op=dist.ReduceOp.SUM)
            return result

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    loss = mean_squared_error(Leave.apply(mlp(Enter.apply(x), first, second)), y)
    loss.backward()
    return loss.detach()

# %% answer="tensor-parallel" style="torch.autograd.grad, and einsum"
def shard(first, second):
    rank, width = dist.get_rank(), first.shape[1] // dist.get_world_size()
    own = slice(rank * width, (rank + 1) * width)
    return first[:, own], second[own]


def tensor_parallel_step(x, y, first, second):
    part = torch.einsum("bh,hd->bd", functional.gelu(torch.einsum("bd,dh->bh", x, first)), second)
    output = part.detach().clone()
    dist.all_reduce(output)
    loss = functional.mse_loss(output, y)
    slope = 2 * (output - y) / output.numel()
    x.grad, first.grad, second.grad = torch.autograd.grad(part, [x, first, second], slope)
    dist.all_reduce(x.grad)
    return loss

# %% answer="pipeline-parallel" style="asynchronous sends and a deque"
def pipeline_step(x, y, weight, micro_batches):
    from collections import deque

    if x is not None:
        works, flying = [], deque()
        for part in torch.chunk(x, micro_batches):
            flying.append(functional.gelu(part @ weight))
            works.append(dist.isend(flying[-1].detach(), dst=1))
        while flying:
            activations = flying.popleft()
            gradient = torch.zeros_like(activations)
            dist.recv(gradient, src=1)
            torch.autograd.backward(activations, gradient)
        [work.wait() for work in works]
        return None
    total, works = torch.zeros(()), []
    for target in y.split(len(y) // micro_batches):
        arrived = target.new_empty(len(target), weight.shape[0])
        dist.recv(arrived, src=0)
        arrived.requires_grad_(True)
        loss = ((arrived @ weight - target) ** 2).mean() / micro_batches
        loss.backward()
        total += loss.detach()
        works.append(dist.isend(arrived.grad, 0))
    for work in works:
        work.wait()
    return total

# %% answer="experiment" style="more cores and ranks, bound by taskset in a loop"
%%writefile code/my_experiment.sh
#!/bin/bash
#SBATCH --job-name=my_experiment
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
export OMP_NUM_THREADS=1 SRUN_CPUS_PER_TASK=2
TRAIN="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py --num-layers 4 --hidden-size 256 \
       --num-attention-heads 8 --seq-length 256 --max-position-embeddings 256 --device cpu \
       --micro-batch-size 2 --global-batch-size 8 --train-iters 8 --lr 1e-3 \
       --data-path $LAB_HOME/data/bpe-4096/text_document --vocab-file $LAB_HOME/data/bpe-4096/vocab.json \
       --merge-file $LAB_HOME/data/bpe-4096/merges.txt --split 949,50,1 --log-interval 1 --eval-iters 0"
for ranks in 1 2; do
    srun torchrun --standalone --nproc_per_node $ranks $TRAIN "$@"
done

# %% answer="fastest-that-fits" style="two loops and a sorted list"
def fastest_that_fits(small, large, layers, capacity):
    candidates = []
    for name, (time, memory) in large.items():
        per_layer = [(b - a) / (layers[1] - layers[0]) for a, b in zip(small[name], large[name])]
        extra = layers[2] - layers[1]
        if memory + extra * per_layer[1] <= capacity:
            candidates.append((time + extra * per_layer[0], name))
    return sorted(candidates)[0][1] if candidates else None

# %% answer="repaired" style="exec, equals signs, and an exported default of srun"
%%writefile code/my_two_ranks.sh
#!/bin/bash
# A small GPT on one node, data-parallel over two ranks, each on a core of its own.
#SBATCH --job-name=my_two_ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/bpe-4096
MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 --device cpu"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 10"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 1 --eval-iters 0"
TRAINER=$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
exec srun -N1 -n1 torchrun --standalone --nnodes=1 --nproc-per-node=2 "$TRAINER" \
    $OPTIMIZER $BATCH $MODEL $OUTPUT $TEXT "$@"

# %% answer="repaired" style="an array of all words, built in a loop"
%%writefile code/my_two_ranks.sh
#!/bin/bash
# A small GPT on one node, data-parallel over two ranks, each on a core of its own.
#SBATCH --job-name=my_two_ranks
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/bpe-4096
MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 --device cpu"
BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 10"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
           --weight-decay 0.01 --clip-grad 1.0"
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--log-interval 1 --eval-iters 0"
TRAINER=$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py
words=()
for name in MODEL BATCH OPTIMIZER TEXT OUTPUT; do
    read -r -a more <<< "${!name}"
    words+=("${more[@]}")
done
port=$((20000 + SLURM_JOB_ID % 10000))
srun --cpus-per-task=2 torchrun --nnodes 1 --nproc_per_node 2 --rdzv-backend=c10d \
    --rdzv-endpoint="localhost:$port" --rdzv-id="job$SLURM_JOB_ID" "$TRAINER" "${words[@]}" "$@"
