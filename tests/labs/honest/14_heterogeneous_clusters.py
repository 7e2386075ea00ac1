# %% answer="stage-times" style="numpy"
def stage_times(case, plan):
    import numpy as np
    times = [np.multiply(case["kinds"][kind]["layer"], count) for kind, count in plan["stages"]]
    (first, _), (last, _) = plan["stages"][0], plan["stages"][-1]
    times[0] = times[0] + case["kinds"][first]["embedding"]
    times[-1] = times[-1] + case["kinds"][last]["head"]
    forward, backward = np.transpose(times)
    return forward.tolist(), backward.tolist()

# %% answer="simulate" style="recursion from the last pass, with a cache"
def simulate(forward, backward, link, micro_batches):
    from functools import cache

    stages, orders = len(forward), []
    for stage in range(stages):
        order, f, b = [], 0, 0
        while b < micro_batches:
            if f < micro_batches and f - b < stages - stage:
                order.append(("F", f))
                f += 1
            else:
                order.append(("B", b))
                b += 1
        orders.append(order)

    @cache
    def end(stage, kind, number):
        return start(stage, kind, number) + (forward if kind == "F" else backward)[stage]

    @cache
    def start(stage, kind, number):
        place = orders[stage].index((kind, number))
        times = [end(stage, *orders[stage][place - 1])] if place else [0.0]
        source = stage - 1 if kind == "F" else stage + 1
        if 0 <= source < stages:
            times.append(end(source, kind, number) + link)
        return max(times)

    return [[[f"{kind}{number}", start(stage, kind, number), end(stage, kind, number)]
             for kind, number in order] for stage, order in enumerate(orders)]

# %% answer="room" style="an inner function, and zip"
def room(case, replicas, kinds):
    share = case["global_batch"] // replicas

    def layers(kind, behind):
        flying = min(behind, share)
        return int(case["kinds"][kind]["memory"] / (case["state"] + flying * case["activation"]))

    return list(map(layers, kinds, range(len(kinds), 0, -1)))

# %% answer="best-split" style="dynamic programming over the stages"
def best_split(case, replicas, kinds):
    rooms, infinite = room(case, replicas, kinds), float("inf")
    best = {0: (0.0, ())}
    for stage, kind in enumerate(kinds):
        spec, ends = case["kinds"][kind], stage in (0, len(kinds) - 1)
        fixed = (sum(spec["embedding"]) if stage == 0 else 0) + (sum(spec["head"]) if stage == len(kinds) - 1 else 0)
        following = {}
        for used, (slowest, split) in best.items():
            for count in range(0 if ends else 1, min(rooms[stage], case["layers"] - used) + 1):
                time = max(slowest, fixed + count * sum(spec["layer"]))
                if time < following.get(used + count, (infinite, ()))[0]:
                    following[used + count] = time, (*split, count)
        best = following
    return list(best[case["layers"]][1]) if case["layers"] in best else None

# %% answer="placements" style="positions of each kind, by combinations"
def placements(counts):
    from itertools import combinations

    orders = [[None] * sum(counts.values())]
    for kind, count in counts.items():
        filled = []
        for order in orders:
            free = [place for place, found in enumerate(order) if found is None]
            for chosen in combinations(free, count):
                filled.append([kind if place in chosen else found for place, found in enumerate(order)])
        orders = filled
    return orders

# %% answer="placements" style="a recursive generator"
def placements(counts):
    def orders(left):
        if not any(left.values()):
            yield ()
        for kind in left:
            if left[kind]:
                for rest in orders({**left, kind: left[kind] - 1}):
                    yield kind, *rest
    return list(orders(counts))

# %% answer="step-ms" style="a generator of the stages' ends"
def step_ms(case, plan):
    def ends():
        n = plan["replicas"]
        passes = simulate(*stage_times(case, plan), case["link"], case["global_batch"] // n)
        for (kind, layers), done in zip(plan["stages"], passes):
            spec = case["kinds"][kind]
            rate = spec["inside" if spec["per_node"] >= n else "network"]
            yield done[-1][2] + 1000 * layers * case["gradients"] * 2 * (n - 1) / n / rate
    return max(ends())

# %% answer="survives" style="all combinations by a bit mask"
def survives(case, chosen, other, error):
    names = sorted(case["kinds"])
    for mask in range(2 ** len(names)):
        kinds = {}
        for bit, name in enumerate(names):
            factor = 1 + error if mask >> bit & 1 else 1 - error
            kinds[name] = case["kinds"][name] | {part: [factor * one for one in case["kinds"][name][part]]
                                                 for part in ("embedding", "layer", "head")}
        if not step_ms(case | {"kinds": kinds}, chosen) < step_ms(case | {"kinds": kinds}, other):
            return False
    return True

# %% answer="mixed-script" style="an array of words, and a here-document for each task's shell"
%%writefile code/mixed.sh
#!/bin/bash
#SBATCH -J mixed -N1 --ntasks-per-node=1 -c4 --gres=gpu:a10:2 -t 10 -o megatron/logs/%x_%j.txt
#SBATCH hetjob
#SBATCH -N1 --ntasks-per-node=1 -c4 --gres=gpu:a100:2
set -euo pipefail

export OMP_NUM_THREADS=1
DATA=$LAB_HOME/data/GPT-2_assets
MODEL="--fp16 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
       --seq-length 1024 --max-position-embeddings 1024"
BATCH="--micro-batch-size 4 --global-batch-size 64 --train-iters 4 --lr 1.5e-4"
balance=(4 8)
printf -v LAYOUT -- '--pipeline-model-parallel-size %d --balance %d-%d' "${#balance[@]}" "${balance[@]}"
TEXT="--data-path $DATA/my-gpt2_text_document --vocab-file $DATA/gpt2-vocab.json \
      --merge-file $DATA/gpt2-merges.txt --split 949,50,1"
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))

RANKS="--nnodes 2 --nproc_per_node 2 --master_addr $MASTER_ADDR --master_port $MASTER_PORT"
TRAINER="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py --device virtual $MODEL $BATCH $LAYOUT $TEXT \
         --timing-log-level 0 --log-interval 2 --eval-iters 0"

srun --het-group=0-1 --cpus-per-task=4 bash -s -- $RANKS $TRAINER "$@" <<'TASK'
set -eu
exec torchrun --node-rank="$SLURM_NODEID" "$@"
TASK
