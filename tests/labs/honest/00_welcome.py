# %% answer="unblock" style="a generator, and sets"
def unblock(jobs, drained, limit, failed):
    bad_nodes, dead = set(drained), set(failed)

    def commands(job):
        number = job["job"]
        if not bad_nodes.isdisjoint(job["nodes"]):
            yield f'scontrol update jobid={number} NodeList=""'
        if limit < job["minutes"]:
            yield f"scontrol update JobId={number} timelimit={limit}"
        fine = ",".join(f"{kind}:{other}" for kind, other in job["after"]
                        if not (kind == "afterok" and other in dead))
        if fine.count("after") != len(job["after"]):
            yield f"scontrol update JobId={number} Dependency={fine}"
        if job["held"]:
            yield f"scontrol release {number}"

    return [command for job in jobs for command in commands(job)]

# %% answer="unblock" style="nodes that are left, and a table of tests"
def unblock(jobs, drained, limit, failed):
    result = []
    for job in jobs:
        keep = [one for one in job["after"] if one[0] == "afterany" or one[1] not in failed]
        left = [node for node in job["nodes"] if node not in drained]
        for needed, change in (
                (len(left) < len(job["nodes"]), "ReqNodeList=" + ",".join(left)),
                (job["minutes"] > limit, f"TimeLimit={limit}"),
                (keep != job["after"], "Dependency=" + ",".join("%s:%d" % (*one,) for one in keep))):
            if needed:
                result += [f"scontrol update JobId={job['job']} {change}"]
        result += [f"scontrol release {job['job']}"] * job["held"]
    return result

# %% answer="suspects" style="Counter, and a class of consequences by words"
LOST = ("Connection", "Broken pipe", "Timed out", "remote process exited", "Watchdog")

def suspects(reports, world_size):
    from collections import Counter

    cause = sorted(r["rank"] for r in reports if not any(word in r["error"] for word in LOST))
    heard = {r["rank"] for r in reports}
    absent = [rank for rank in range(world_size) if rank not in heard]
    places = Counter(str(r["waits_for"]) for r in reports if r["waits_for"] is not None)
    usual = places.most_common(1)[0][0] if places else ""
    odd = sorted(r["rank"] for r in reports if r["waits_for"] and str(r["waits_for"]) != usual)
    return cause or absent or odd

# %% answer="suspects" style="one dictionary by rank"
def suspects(reports, world_size):
    words = ["closed by peer", "reset by peer", "Broken pipe", "Timed out waiting", "remote process exited",
             "Watchdog caught"]
    by_rank = dict.fromkeys(range(world_size))
    by_rank.update({report["rank"]: report for report in reports})
    guilty = [rank for rank, report in by_rank.items()
              if report and not [word for word in words if word in report["error"]]]
    if not guilty:
        guilty = [rank for rank, report in by_rank.items() if report is None]
    if not guilty:
        groups = {}
        for rank, report in by_rank.items():
            if report["waits_for"]:
                groups.setdefault(tuple(sorted(report["waits_for"].items(), key=str)), []).append(rank)
        small = sorted(groups.values(), key=len)[:-1]
        guilty = sum(small, [])
    return sorted(guilty)

# %% answer="experiment" style="the folder, by sbatch"
%%writefile code/experiment.sh
#!/bin/bash
#SBATCH -J experiment -N 1 -n 1
#SBATCH -c 4
#SBATCH -w slurmnode2
#SBATCH -t 5
#SBATCH --chdir=..
#SBATCH --output=%x_%j.txt
export OMP_NUM_THREADS=1
srun -c 4 torchrun --standalone --nproc_per_node 4 "$LAB_HOME/code/count_tokens.py" \
    --data="$LAB_HOME/data/bpe-4096/text_document.bin" --result=megatron/logs/tokens.json

# %% answer="experiment" style="the node alone"
%%writefile code/experiment.sh
#!/bin/bash
#SBATCH --job-name=experiment
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --nodelist=slurmnode1
#SBATCH --time=00:05:00
#SBATCH --output=%x_%j.txt

export OMP_NUM_THREADS=1
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/code/count_tokens.py" \
    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json
echo "done"

# %% answer="my-count" style="functions, arrays, readonly, and a list of failures"
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
declare -a broken=()

count() {
    local options=(--data="$home/data/$1/text_document.bin" --result="$home/megatron/logs/$1.json")
    srun -c "$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc-per-node=4 "$home/code/count_tokens.py" "${options[@]}"
}

while (( $# )); do
    if ! count "$1"; then
        broken+=("$1")
    fi
    shift
done
(( ${#broken[@]} == 0 ))

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
worst=0
for name; do
    srun torchrun --standalone --nproc_per_node 4 code/count_tokens.py \
        --data "data/$name/text_document.bin" --result "megatron/logs/$name.json"
    status=$?
    if [ $status -gt $worst ]; then worst=$status; fi
done
exit $worst

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
