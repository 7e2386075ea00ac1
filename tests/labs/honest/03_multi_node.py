# %% answer="stragglers" style="tensors"
def stragglers(compute, communication):
    times = torch.tensor(compute, dtype=torch.float64).median(dim=1).values
    late = (times > 1.1 * times.min()).nonzero().flatten()
    return late.tolist(), (times.max() - times.min()).item() if len(late) else 0.0

# %% answer="experiment" style="three ranks trade places, all others stay"
def assign(ranks, suspect):
    gpus, shards = list(range(ranks)), list(range(ranks))
    one, two = [rank for rank in range(ranks) if rank != suspect][:2]
    gpus[suspect], gpus[one], gpus[two] = one, suspect, two
    shards[suspect], shards[two] = two, suspect
    return gpus, shards


def cause(gpus, shards, compute, suspect):
    normal = sorted(compute)[len(compute) // 2]
    late = [rank for rank, time in enumerate(compute) if time > 1.1 * normal]
    found = {gpus.index(suspect): "gpu", shards.index(suspect): "shard", suspect: "rank"}
    return found[late[0]], suspect

# %% answer="arrange" style="blocks of every shape that fills a node"
def arrange(nodes, gpus_per_node, t, p, activation, gradient):
    d = nodes * gpus_per_node // t // p
    best = None
    for wide in range(1, d + 1):
        for deep in range(1, p + 1):
            order = []
            for replica in range(0, d, wide):
                for stage in range(0, p, deep):
                    for one in range(replica, min(replica + wide, d)):
                        for other in range(stage, min(stage + deep, p)):
                            order += [[one, other, shard] for shard in range(t)]
            cost = placements.busiest_node(order, gpus_per_node, activation, gradient)
            if best is None or cost < best[0]:
                best = cost, order
    return best[1]

# %% answer="my-two-nodes" style="a here-document that is a program, and readarray"
%%writefile code/my_two_nodes.sh
#!/bin/bash
#SBATCH --job-name=my_two_nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH -N 2-2
#SBATCH --gres=gpu:2
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
    --device virtual:v100 --virtual-network ethernet:25gbit \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 2 --train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
    --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
    --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
readarray -t hosts < <(scontrol show hostnames)
printf -v port '3%04d' "$((SLURM_JOB_ID % 10000))"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -s -- "$@" <<END
exec torchrun --nnodes=${#hosts[@]} --nproc-per-node=2 --rdzv-backend=c10d \
    --rdzv-endpoint=${hosts[0]}:$port --rdzv-id=$SLURM_JOB_ID $PROGRAM "\$@"
END

# %% answer="my-two-nodes" style="environment variables of torchrun, and sed"
%%writefile code/my_two_nodes.sh
#!/bin/bash
#SBATCH --job-name=my_two_nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH --nodes=2 --gpus-per-node=v100:2
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
    --device virtual:v100 --virtual-network ethernet:25gbit \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 2 --train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
    --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
    --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
first_host() { scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p; }
export PET_NNODES=$SLURM_NNODES PET_NPROC_PER_NODE=2 PET_RDZV_BACKEND=c10d PET_RDZV_ID=$SLURM_JOB_ID
PET_RDZV_ENDPOINT="$(first_host):$(( SLURM_JOB_ID % 20000 + 15000 ))"
export PET_RDZV_ENDPOINT
srun -c "${SLURM_CPUS_PER_TASK}" torchrun $PROGRAM "$@"

# %% answer="fit" style="all ranks evaluate, and rank 0's decision is broadcast"
def fit(training, validation, steps, every, goal):
    (x, y), ranks = training, dist.get_world_size()
    weight, history, stop = x.new_zeros(3), [], torch.zeros(1)
    for step in range(steps):
        gradient = torch.einsum("nf,n->f", x, x @ weight - y) * (2 / len(x))
        dist.all_reduce(gradient)
        weight = weight - 0.1 * gradient / ranks
        if (step + 1) % every:
            continue
        errors = [torch.zeros((), dtype=x.dtype) for _ in range(ranks)]
        dist.all_gather(errors, (validation[0] @ weight - validation[1]).square().mean())
        history.append(sum(errors).item() / ranks)
        stop.fill_(history[-1] <= goal)
        dist.broadcast(stop, 0)
        if stop.item():
            break
    return history if dist.get_rank() == 0 else []

# %% answer="my-two-nodes" style="an exported function, and a relative path"
%%writefile code/my_two_nodes.sh
#!/bin/bash
#SBATCH --job-name=my_two_nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
    --device virtual:v100 --virtual-network ethernet:25gbit \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 2 --train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
    --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
    --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
launch() {
    cd "$LAB_HOME/code"
    exec torchrun "--nnodes=$SLURM_NNODES" --nproc-per-node=2 --rdzv-backend=c10d "--rdzv-endpoint=$1" \
        "--rdzv-id=$SLURM_JOB_ID" ../megatron/${PROGRAM#*megatron/} "${@:2}"
}
export -f launch
export PROGRAM
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | awk 'NR == 1')
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c 'launch "$@"' bash "$HOST:$((20000 + 10#${SLURM_JOB_ID: -1}))" "$@"

# %% answer="my-two-nodes" style="a file that names each task's program"
%%writefile code/my_two_nodes.sh
#!/bin/bash
#SBATCH --job-name=my_two_nodes
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
#SBATCH --nodes=2
#SBATCH --gpus-per-node=2
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py \
    --device virtual:v100 --virtual-network ethernet:25gbit \
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
    --seq-length 1024 --max-position-embeddings 1024 \
    --micro-batch-size 2 --train-iters 5 --lr 1.5e-4 --log-interval 1 --eval-iters 0 \
    --data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
    --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
first=$(scontrol show hostnames | { read -r host; echo "$host"; })
tasks=$TMPDIR/tasks_$SLURM_JOB_ID
trap 'rm -f "$tasks"' EXIT
echo "* torchrun --nnodes 2 --nproc_per_node 2 --node_rank %t --rdzv_backend c10d --rdzv_id $SLURM_JOB_ID" \
    "--rdzv_endpoint $first:$((20000 + SLURM_JOB_ID)) $PROGRAM $*" > "$tasks"
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --multi-prog "$tasks"
