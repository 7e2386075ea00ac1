# %% answer="steps-for" style="the length of a range"
def steps_for(tokens, global_batch, sequence_length):
    return len(range(0, tokens, global_batch * sequence_length))

# %% answer="steps-for" style="fractions, and an import inside"
def steps_for(tokens, global_batch, sequence_length):
    from fractions import Fraction
    from math import ceil
    return ceil(Fraction(tokens, global_batch) / sequence_length)

# %% answer="steps-for" style="numpy, and a boolean as an addend"
def steps_for(tokens, global_batch, sequence_length):
    import numpy as np
    whole, rest = np.divmod(tokens, global_batch * sequence_length)
    return int(whole) + bool(rest)

# %% answer="progress" style="a dictionary of all fields"
def progress(line, sequence_length):
    head, *fields = [part.strip() for part in line.split("|") if part.strip()]
    at, total = map(int, head.removeprefix("iteration").split("/"))
    values = {key.strip(): float(value) for key, value in (field.split(":") for field in fields)}
    seconds = values["elapsed time per iteration (ms)"] / 1e3
    return (values["global batch size"] * sequence_length / seconds, (total - at) * seconds / 60)

# %% answer="progress" style="one regular expression with names, and numpy floats"
def progress(line, sequence_length):
    import numpy as np
    found = re.search(r"(?P<i>\d+)/\s*(?P<n>\d+).*\(ms\): (?P<ms>[\d.]+).*batch size:\s+(?P<b>\d+)", line)
    i, n, ms, b = (np.float64(found[name]) for name in ("i", "n", "ms", "b"))
    return b * sequence_length * 1000 / ms, (n - i) * ms / 60_000

# %% answer="never-start" style="a recursive inner function with a memo"
def never_start(table):
    from functools import lru_cache

    jobs = {}
    for row in filter(None, table.split("\n")):
        number, reason, needs = row.split("|")
        jobs[int(number)] = reason, [int(one) for one in re.findall(r"after\w+:(\d+)", needs)]

    @lru_cache(None)
    def hopeless(number):
        if number not in jobs:
            return False
        reason, needs = jobs[number]
        if reason == "Dependency":
            return any(map(hopeless, needs))
        if reason.startswith("ReqNodeNotAvail"):
            return "UnavailableNodes" in reason
        return reason not in ("Resources", "Priority", "BeginTime")

    return [number for number in jobs if hopeless(number)]

# %% answer="never-start" style="a fixed point of sets"
def never_start(table):
    rows = [line.split("|") for line in table.splitlines()]
    stuck = {row[0] for row in rows if row[1].split(",")[0] in {
        "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "PartitionTimeLimit", "PartitionDown"}
        or row[1].startswith("ReqNodeNotAvail, Unavailable")}
    size = -1
    while size != len(stuck):
        size = len(stuck)
        stuck |= {number for number, _, needs in rows
                  if stuck.intersection(re.split(r"\D+", needs))}
    return [int(number) for number, *_ in rows if number in stuck]

# %% answer="first-cause" style="a state machine over an iterator"
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting",
        "remote process exited")

def first_cause(log):
    lines = iter(log.split("\n"))
    for line in lines:
        match = re.match(r"\[rank(\d+)\]: Traceback", line)
        if not match:
            continue
        prefix = f"[rank{match[1]}]: "
        text = next(lines).removeprefix(prefix)
        while text.startswith(" "):
            text = next(lines).removeprefix(prefix)
        if not any(lost in text for lost in LOST):
            return int(match[1]), text
    return None

# %% answer="first-cause" style="one expression with a multi-line regular expression"
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting",
        "remote process exited")

def first_cause(log):
    pattern = r"^\[rank(\d+)\]: Traceback.*\n(?:\[rank\1\]:  .*\n)+\[rank\1\]: (\S.*)$"
    return next(((int(rank), error) for rank, error in re.findall(pattern, log, re.M)
                 if not re.search("|".join(map(re.escape, LOST)), error)), None)

# %% answer="my-count" style="functions, arrays, readonly, and exec"
%%writefile code/my_count.sh
#!/usr/bin/env bash
#SBATCH -J count
#SBATCH -N 1
#SBATCH --ntasks-per-node 1
#SBATCH -c 4
#SBATCH -t 5
#SBATCH -o %x_%j.txt
set -o errexit -o nounset -o pipefail
readonly home=${LAB_HOME:?start it from the course}
declare -x OMP_NUM_THREADS=1

launcher() { printf '%s\n' torchrun --standalone --nproc-per-node=4; }
mapfile -t words < <(launcher)
options=(--data="$home/data/bpe-4096/text_document.bin"
         --result="$home/megatron/logs/tokens.json")
exec srun -c "$SLURM_CPUS_PER_TASK" "${words[@]}" "$home/code/count_tokens.py" "${options[@]}"

# %% answer="my-count" style="the workspace as the current folder, a trap, and the status by hand"
%%writefile code/my_count.sh
#!/bin/bash
#SBATCH --job-name=count --nodes=1 --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=0:05:00
#SBATCH --output=./count_%j.txt
set -u
trap 'echo "ended with $?"' EXIT
export OMP_NUM_THREADS=1 SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
cd "$LAB_HOME" || exit
if srun torchrun --standalone --nproc_per_node 4 code/count_tokens.py \
        --data data/bpe-4096/text_document.bin --result megatron/logs/tokens.json; then
    echo "done"
else
    status=$?
    echo "failed" >&2
    exit $status
fi

# %% answer="my-first" style="short options, a here-document of flags, and a function"
%%writefile code/my_first.sh
#!/bin/bash -l
#SBATCH -J my_first
#SBATCH -N1 -n1
#SBATCH -c4
#SBATCH -t 10
#SBATCH -o megatron/logs/my_first-%j.log
set -euo pipefail

export OMP_NUM_THREADS=2
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py"
DATA=$LAB_HOME/data/bpe-4096
FLAGS=$(cat <<END
--device=cpu --num-layers=4 --hidden-size=256 --num-attention-heads=8
--seq-length=256 --max-position-embeddings=256
--micro-batch-size=2 --global-batch-size=4 --train-iters=25 --log-interval=1
--lr=0.001 --min-lr=0.0001 --lr-decay-style=cosine --lr-warmup-fraction=.05
--data-path=$DATA/text_document --vocab-file=$DATA/vocab.json
--merge-file=$DATA/merges.txt --split=949,50,1 --eval-iters=0
END
)
run() { srun --cpus-per-task "$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc-per-node 2 "$@"; }
run "$PROGRAM" $FLAGS

# %% answer="my-first" style="a case, srun --export, and python -m torch.distributed.run"
%%writefile code/my_first.sh
#!/bin/bash
#SBATCH --job-name my_first
#SBATCH --nodes 1
#SBATCH --ntasks-per-node 1
#SBATCH --cpus-per-task 4
#SBATCH --time 00:10:00
#SBATCH --output megatron/logs/%x.%j.out
set -euo pipefail

export OMP_NUM_THREADS=2
PROGRAM="$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py"
DATA=$LAB_HOME/data/bpe-4096
FLAGS="--device cpu --num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256 \
       --micro-batch-size 2 --global-batch-size 4 --train-iters 25 --log-interval 1 \
       --lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05 \
       --data-path $DATA/text_document --vocab-file $DATA/vocab.json \
       --merge-file $DATA/merges.txt --split 949,50,1 --eval-iters 0"
case ${SLURM_NNODES:-1} in
    1) how=(--standalone --nnodes=1) ;;
    *) echo "this script is for one node" >&2; exit 2 ;;
esac
srun --export=ALL,PYTHONUNBUFFERED=1 -c "$SLURM_CPUS_PER_TASK" \
    python -m torch.distributed.run "${how[@]}" --nproc_per_node=2 "$PROGRAM" $FLAGS
