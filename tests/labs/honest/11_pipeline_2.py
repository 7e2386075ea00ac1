# %% answer="max-pool" style="scatter"
class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):
        largest, place = x.view(-1, size).max(dim=1)  # place: 0 to size - 1, in each group
        ctx.save_for_backward(place)
        ctx.size = size
        return largest

    @staticmethod
    def backward(ctx, gradient):
        (place,) = ctx.saved_tensors
        return gradient.new_zeros(len(place), ctx.size).scatter_(1, place[:, None], gradient[:, None]).flatten(), None

# %% answer="max-pool" style="one-hot"
class MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, size):
        largest, place = x.view(-1, size).max(dim=1)  # place: 0 to size - 1, in each group
        ctx.save_for_backward(place)
        ctx.size = size
        return largest

    @staticmethod
    def backward(ctx, gradient):
        (place,) = ctx.saved_tensors
        return (torch.nn.functional.one_hot(place, ctx.size) * gradient.unsqueeze(-1)).view(-1), None

# %% answer="one-f-one-b" style="a greedy simulation of one stage"
def one_f_one_b(stages, micro_batches):
    plan = []
    for stage in range(stages):
        words, f, b = [], 0, 0
        while b < micro_batches:
            if f < micro_batches and f - b < stages - stage:
                words.append(f"F{f}")
                f += 1
            else:
                words.append(f"B{b}")
                b += 1
        plan.append(words)
    return plan

# %% answer="one-f-one-b" style="slices and zip_longest"
def one_f_one_b(stages, micro_batches):
    from itertools import chain, zip_longest
    F, B = ([f"{kind}{n}" for n in range(micro_batches)] for kind in "FB")
    return [" ".join([*F[:stages - 1 - s],
                      *filter(None, chain.from_iterable(zip_longest(F[stages - 1 - s:], B)))])
            for s in range(stages)]

# %% answer="live" style="min of two, by a dictionary"
def live(schedule, stages, stage, micro_batches):
    return min(micro_batches, {"gpipe": micro_batches, "1f1b": stages - stage}[schedule])

# %% answer="stash" style="a class with a set of held versions"
def stash(actions):
    class Stage:
        newest, used, most = 0, {}, 1

        def run(self, word):
            if word[0] == "F":
                version = self.used[word[1:]] = self.newest
            else:
                version = self.used.pop(word[1:])
                self.newest += 1
            self.most = max(self.most, len({*self.used.values(), self.newest}))
            return version

    stage = Stage()
    stage.used = {}
    return list(map(stage.run, actions)), stage.most

# %% answer="stage-memory" style="match"
def stage_memory(policy, stages, stage, micro_batches, weights, activations):
    behind = stages - stage
    match policy:
        case "gpipe":
            copies, flying = 1, micro_batches
        case "1f1b":
            copies, flying = 1, behind
        case "pipedream":
            copies, flying = behind, behind
        case "2bw":
            copies, flying = 2, behind
    return copies * weights + flying * activations

# %% answer="best-split" style="bisection over the answer, and then greedy from the right"
def best_split(times, stages):
    sums = sorted({sum(times[a:b]) for a in range(len(times)) for b in range(a + 1, len(times) + 1)})

    def pack(limit):
        split, load = [0], 0
        for left, time in zip(range(len(times), 0, -1), times):
            if split[-1] and (load + time > limit or left == stages - len(split)):
                split.append(0)
                load = 0
            split[-1] += 1
            load += time
            if load > limit:
                return None
        return split if len(split) == stages else None

    return next(found for found in map(pack, sums) if found)

# %% answer="best-split" style="recursion with a cache"
def best_split(times, stages):
    from functools import cache

    @cache
    def best(begin, left):
        if left == 1:
            return sum(times[begin:]), (len(times) - begin,)
        options = []
        for end in range(begin + 1, len(times) - left + 2):
            rest, split = best(end, left - 1)
            options.append((max(sum(times[begin:end]), rest), (end - begin, *split)))
        return min(options)

    return best(0, stages)[1]

# %% answer="from-deepspeed" style="two counters by name"
def from_deepspeed(commands):
    from collections import defaultdict
    from itertools import count
    numbers = defaultdict(count)
    return [f"{one[0]}{next(numbers[one[0]])}" for one in commands
            if one.partition("(")[0] in ("ForwardPass", "BackwardPass")]

# %% answer="batch-config" style="exact division by fractions"
def batch_config(global_batch, micro_batch, ranks, stages):
    from fractions import Fraction
    steps = Fraction(global_batch * stages, micro_batch * ranks)
    if steps.denominator != 1 or ranks % stages:
        raise ValueError(f"{global_batch} samples are not a multiple of {micro_batch} x {ranks // stages}")
    return dict(gradient_accumulation_steps=int(steps), train_micro_batch_size_per_gpu=micro_batch,
                train_batch_size=global_batch)

# %% answer="interleaved" style="an order of all passes, as pairs"
def interleaved(stages, micro_batches, chunks):
    group = stages * chunks
    def word(kind, step):
        block, inside = divmod(step, group)
        chunk, offset = divmod(inside, stages)
        return f"{kind}{block * stages + offset}.{chunk if kind == 'F' else chunks - 1 - chunk}"

    total, plan = micro_batches * chunks, []
    for stage in range(stages):
        warm = min(total, 2 * (stages - stage - 1) + (chunks - 1) * stages)
        words = [word("F", step) for step in range(warm)]
        for step in range(total):
            if warm + step < total:
                words.append(word("F", warm + step))
            words.append(word("B", step))
        plan.append(" ".join(words))
    return plan

# %% answer="interleaving" style="sends counted one by one"
def interleaving(stages, micro_batches, chunks):
    sends = 0
    for piece in range(stages * chunks):
        for _ in range(micro_batches):
            sends += (piece < stages * chunks - 1) + (piece > 0)
    return (stages - 1) / (micro_batches * chunks), sends

# %% answer="my-balance" style="a loop over the stages"
%%writefile code/my_balance.sh
#!/bin/bash
#SBATCH --job-name=my_balance
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --gpus-per-node=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 4 --global-batch-size 32 --train-iters 4 --lr 1.5e-4"
layers=(4 4 3 1)
balance=$(IFS=-; echo "${layers[*]}")
LAYOUT="--pipeline-model-parallel-size=${#layers[@]} --balance=$balance"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 $MODEL $BATCH $LAYOUT $TEXT --log-interval 2 --eval-iters 0 "$@"

# %% answer="my-interleaving" style="a layout by arithmetic"
%%writefile code/my_interleaving.sh
#!/bin/bash
#SBATCH --job-name=my_interleaving
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gpus-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 24 --hidden-size 1024 --num-attention-heads 16 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 1 --global-batch-size 8 --train-iters 4 --lr 1.5e-4"
LAYOUT="--pipeline-model-parallel-size=$SLURM_NNODES"
LAYOUT+=" --num-layers-per-virtual-pipeline-stage=$((24 / SLURM_NNODES / 2))"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

srun --kill-on-bad-exit=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    bash -c 'exec torchrun --node_rank "$SLURM_NODEID" "$@"' torchrun \
    --nnodes 4 --nproc_per_node 1 --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device virtual:v100 --virtual-network ethernet:25gbit $MODEL $BATCH $LAYOUT $TEXT \
    --log-interval 2 --eval-iters 0 "$@"
