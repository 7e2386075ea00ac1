# ---
# jupyter:
#   jupytext:
#     comment_magics: false
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Welcome: your first jobs
#
# Your training job has been waiting since yesterday. Will it ever start? Another job is marked as completed, but it
# left no result, and its log is full of errors from four processes. Which of them failed first?
#
# Large models are trained on a **cluster**: many computers, called **nodes**, that many people share. A **scheduler**
# decides which program runs where, and when. Ours is **Slurm** ([Yoo, Jette, and Grondona,
# 2003](https://doi.org/10.1007/10968987_3)). Waiting and failing are everyday events there: in 54 days, the training
# of Llama 3 405B was interrupted 466 times ([Grattafiori et al., 2024](https://arxiv.org/abs/2407.21783)).
#
# You need to know PyTorch, but nothing about Slurm. The lab takes one to two hours; a good place to stop is before
# *Which rank failed first?* (After a restart of the kernel, run the cells above again.) Run the cells from top to
# bottom with <kbd>Shift</kbd>+<kbd>Enter</kbd>.

# %% tags=["setup"]
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab are relative to the workspace

# %% tags=["check-setup"]
from labkit import check

# Answers cannot import these, because they contain the solutions.
check.mask("job_monitor", "lablib.jobs", "layout_estimator", "minimegatron", "pipeline_schedules",
           "slurmbox")

# %% [markdown]
# ## Your first job

# %% tags=["explore"]
import shlex
import subprocess
import time

from job_monitor import logs
from labcore.colors import mark, result
from lablib import failures, jobs, plots, queues

jobs.connect()
!sinfo

# %% [markdown]
# `slurmnode[1-2]` is short for `slurmnode1` and `slurmnode2`, and nodes whose `STATE` is `idle` are free. A
# **partition** is a set of nodes that you can submit jobs to; the asterisk marks the default. If your nodes are
# called `slurmnode`, you are on the course's own cluster: a real Slurm, whose nodes share one machine.
#
# `code/dp_single_node.sh` trains a small GPT on one node, on the CPU: 4 layers of width 256. Each step takes 4 samples of
# 256 tokens. How many minutes will 1,000 steps take? Commit to a number before you run the job: guesses are not graded,
# but you will remember the answer better.

# %% answer="guess-minutes"
### BEGIN SOLUTION
guess_minutes = 5.0
### END SOLUTION

# %% [markdown]
# The `!` passes a line to the shell. Everything after the script's name goes to the training program: log each of
# 1,000 steps of 4 samples, and do not evaluate.

# %% tags=["explore"] short={"iters 1000": "iters 4 --num-layers 2 --hidden-size 64 --seq-length 64"}
!sbatch code/dp_single_node.sh --train-iters 1000 --log-interval 1 --global-batch-size 4 --eval-iters 0
!squeue

# %% [markdown]
# `sbatch` did not wait for the training. It put your script into the queue, printed its **job ID**, and returned.
# `squeue` shows the queue and each job's **state** (`ST`): `PD` is pending, `R` running, and `CG` completing. `sacct`
# lists jobs that have ended.
#
# ![A script goes from your notebook through sbatch into a queue, where it is pending, to a node, where it runs. Its
# output goes to a log in the workspace, which the notebook reads.](../images/way_of_a_job.svg)
#
# Everything that a job prints goes to a file, its **log**. The next cell waits for its first steps.

# %% tags=["explore"] short={"range(100)": "range(600)"}
first = jobs.show()
for _ in range(100):  # at most 50 seconds
    text = first.log.read_text() if first.log.is_file() else ""
    steps = [line for line in text.splitlines() if "elapsed time" in line]
    if len(steps) > 2:
        break
    time.sleep(0.5)
else:
    print("It has not trained three steps yet. If it has ended, its log shows why; otherwise, run this cell again.")
for line in steps[-2:]:
    print(mark(line, r"iteration +\d+/ *\d+", r"iteration \(ms\): [^ |]+", r"batch size: +\d+", "lm loss: [^ |]+"))

# %% [markdown]
# Leave it running. From left to right, each line shows the iteration and how many there will be, the samples consumed
# so far, the **step time** in milliseconds, the learning rate, the global batch size, and the loss. A language model
# reads **tokens**, which are pieces of words. A **sample** is a row of them, here 256, and in each step, or
# **iteration**, the model trains on one *global batch*, here 4 samples. From these numbers, you can compute the
# **throughput** and the remaining time. How good was your prediction?

# %% tags=["explore"]
steps = logs.read(first.log).iterations
pace = sorted(step.milliseconds for step in steps)[len(steps) // 2] / 1000  # seconds, the median
print(f"{result(f'{4 * 256 / pace:,.0f}')} tokens/s, {(1000 - steps[-1].iteration) * pace / 60:.1f} minutes left")
check.compare("minutes for 1,000 steps", guess_minutes, 1000 * pace / 60)
years = 15.6e12 / (4 * 256 / pace) / (3600 * 24 * 365)
print(f"Llama 3's 15.6 trillion tokens would take {result(f'{years:,.0f}')} years at this pace")

# %% [markdown]
# Llama 3 405B was trained on [15.6 trillion tokens](https://arxiv.org/abs/2407.21783), and each of them takes far more
# computation in that model than in yours.
#
# `lab top` shows the same for each **rank**. A rank is one process of a distributed program; this job has two, and
# each trains on its own samples. The **loss** measures how badly the model predicts the next token; has it fallen?
# You have seen enough of this run, so the cell also cancels it.

# %% tags=["explore"]
!lab top --once
!scancel {first.job}
plots.loss(first_job=logs.read(first.log))

# %% [markdown]
# ## A script of your own
#
# The first lines of a job script are its **header**. Lines that begin with `#SBATCH` are **directives**: comments to
# the shell, requests to Slurm. Here are the ones that nearly every script has:
#
# | directive | what it requests |
# |---|---|
# | `--job-name=NAME` | the name that `squeue` shows |
# | `--nodes=1` | the number of nodes |
# | `--ntasks-per-node=1` | the number of **tasks** that `srun` starts on each node |
# | `--cpus-per-task=8` | the number of CPUs that the processes of a task share |
# | `--time=2:00:00` | the time limit, after which Slurm kills the job |
# | `--output=FILE` | the log; Slurm replaces `%x` with the job name and `%j` with the job ID |
#
# Slurm runs the script on the job's first node. `srun` starts the tasks, and in each task,
# [`torchrun`](https://docs.pytorch.org/docs/stable/elastic/run.html) starts the ranks of that node: `torchrun
# --nproc_per_node 4 train.py --lr 1e-3` starts four. Three things go wrong so often that they are worth knowing before
# your first script:
#
# - **The limit.** One that is too short costs you the run, but one that is too long makes you wait: Slurm starts a
#   short job early if it fits into a gap and delays no job ahead of it, called
#   [**backfill**](https://slurm.schedmd.com/sched_config.html). `90` means 90 minutes, `2:00` two *minutes*, `2:00:00`
#   two hours, and `1-12` a day and twelve hours.
# - **The CPUs.** [Since Slurm 22.05](https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task), `srun` ignores the
#   header's `--cpus-per-task` unless you write `srun --cpus-per-task="$SLURM_CPUS_PER_TASK"`. Otherwise, all ranks of
#   a task may share one CPU, and your job runs slowly without any warning. `OMP_NUM_THREADS` is the number of threads that
#   each rank computes with.
# - **The port.** The ranks of a job find each other at a network port. `torchrun --standalone`, for jobs on one node,
#   picks a free one; without it, two jobs on the same node collide.
#
# ### Answers and checks
#
# In an exercise, replace the line that says *Your turn*, and run that cell. The cell below it checks your answer, as
# often as you like; attempts are not counted. Keep everything that your answer needs, such as an `import`, in the
# answer's own cell, because cells that you add are not graded. Grading repeats these checks and, in this lab, adds
# cases drawn at random for your submission.

# %% [markdown]
# ### Exercise 1: from an empty file to a job
#
# Complete the script that trains the small GPT, so that
#
# 1. it is called `my_first`, and `srun` starts one `torchrun`, which runs `"$PROGRAM"` as **two** ranks on **one** node;
# 2. each thread of each rank has a CPU of its own, and no CPU is left over;
# 3. Slurm kills it if it runs for more than 10 minutes;
# 4. its log is in the folder `megatron/logs`, and no other job overwrites it;
# 5. two copies of it can run on one node.
#
# **Give a wrong answer first, on purpose,** to see what a hint looks like: for example, a limit of 10 hours. Pass
# `$FLAGS` to the program without quotes, so that the shell splits them into words.

# %% answer="my-first"
%%writefile code/my_first.sh
#!/bin/bash
### BEGIN SOLUTION
#SBATCH --job-name=my_first
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:10:00
#SBATCH --output=megatron/logs/%x_%j.txt
### END SOLUTION
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
### BEGIN SOLUTION
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
### END SOLUTION

# %% check="my-first" points=3
import re


def seconds_of(limit):
    """Return a time limit of Slurm's in seconds, or None if it is not one."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,5})(?::(\d{1,5}))?(?::(\d{1,5}))?", limit)
    if not match:
        return None
    days, *rest = match.groups()
    fields = [int(field) for field in rest if field]
    hours, minutes, seconds = ([*fields, 0, 0] if days or len(fields) == 3 else [0, *fields, 0])[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


script = check.script("code/my_first.sh", only=[])
header = dict(script.directives)
name = header.get("job-name", "my_first.sh, as the file")
check.that(name == "my_first", f"The job is called {name}, and not my_first.")
check.that(header.get("cpus-per-task") == "4", f"It requests {header.get('cpus-per-task', 'no')} CPUs per task. Two ranks "
           "share a task, and each computes with OMP_NUM_THREADS threads. How many CPUs is that?")
check.that(script.run.cpus_per_task == "4", "srun does not give torchrun the job's 4 CPUs: start torchrun with "
           "srun, and pass --cpus-per-task on.")
check.that(script.run.port == "0", f"Every job uses port {script.run.port}, so two jobs on one node collide. With "
           "--standalone, torchrun picks a free port.")
limit = header.get("time", "missing")
check.that(seconds_of(limit) == 600,
           f"The time limit is {limit}, which is not 10 minutes. Slurm reads MINUTES, MINUTES:SECONDS, and "
           "HOURS:MINUTES:SECONDS.")
output = header.get("output", "").replace("%x", "my_first").removeprefix("./")
check.that(output.startswith("megatron/logs/") and "%j" in output,
           f"--output={header.get('output', '')}: the log belongs in megatron/logs, with the job's ID (%j) in its name, or "
           "the next job overwrites it. Slurm expands no variables such as $LAB_HOME in #SBATCH lines. A relative path starts at the folder of sbatch, here the workspace.")
### BEGIN HIDDEN TESTS
for trial in check.draw(2, job_id=range(2, 10**6), ends=range(2, 120)):
    script = check.program("code/my_first.sh", "pretrain_gpt.py", job_id=trial["job_id"], ends=trial["ends"])
    check.that(script.status == trial["ends"], f"The program fails with exit code {trial['ends']}, and the script ends "
               f"with {script.status}.")
### END HIDDEN TESTS

# %% [raw] mutant="my-first" hint="which is not 10 minutes"
# -#SBATCH --time=00:10:00
# +#SBATCH --time=00:10

# %% [raw] mutant="my-first" hint="which is not 10 minutes"
# -#SBATCH --time=00:10:00
# +#SBATCH --time=0-10

# %% [raw] mutant="my-first" hint="unbound variable"
# -#SBATCH --cpus-per-task=4
# +# SBATCH --cpus-per-task=4

# %% [raw] mutant="my-first" hint="How many CPUs is that"
# -#SBATCH --cpus-per-task=4
# +#SBATCH --cpus-per-task=2

# %% [raw] mutant="my-first" hint="and not my_first"
# -#SBATCH --job-name=my_first
# +#SBATCH --job-name=first

# %% [raw] mutant="my-first" hint="The program fails with exit code"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS || true

# %% [raw] mutant="my-first" hint="the log belongs in megatron/logs"
# -#SBATCH --output=megatron/logs/%x_%j.txt
# +#SBATCH --output=megatron/logs/log.txt

# %% [raw] mutant="my-first" hint="pass --cpus-per-task on"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS

# %% [raw] mutant="my-first" hint="Every job uses port"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nproc_per_node 2 "$PROGRAM" $FLAGS

# %% [raw] mutant="my-first" hint="nodes x ranks per node: 1 x 1; the exercise uses 1 x 2"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 "$PROGRAM" $FLAGS

# %% [raw] mutant="my-first" hint="does not split a variable in quotes"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" "$FLAGS"

# %% [raw] mutant="my-first" hint="--ffn-hidden-size 1; the exercise uses 1024"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS
# +srun torchrun --standalone --nproc_per_node 2 "$PROGRAM" $FLAGS --ffn-hidden-size 1

# %% [markdown]
# Submit it. How much of the job's time do its 25 steps take?

# %% tags=["explore"] short={"sbatch code/my_first.sh": "sed 's/iters 25/iters 4/; s/layers 4/layers 2/; s/size 256/size 64/; s/length 256/length 64/' code/my_first.sh | sbatch"}
!sbatch code/my_first.sh

# %% tags=["explore"]
mine = jobs.wait()

# %% tags=["explore"]
log = logs.read(mine.log)
training = sum(step.milliseconds for step in log.iterations) / 1000
print(f"{result(f'{mine.seconds} s')} from start to end, of which {training:.1f} s are training steps")
plots.loss(my_first=log)

# %% [markdown]
# The rest is startup: importing PyTorch and opening the data set. That is negligible in a run of several weeks, but not
# in a short test.

# %% [markdown]
# ## Why does it not start?
#
# `squeue` gives a reason for each job that waits. Some reasons go away by themselves. Others stay until somebody
# acts, and nobody is notified.
#
# The next two cells set up a busy morning. The first is a colleague's script, which counts the tokens of the training
# text on four ranks.

# %% tags=["explore"]
%%writefile code/count.sh
#!/bin/bash
# Count the tokens of the training text with four ranks.
#SBATCH --job-name=count
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --nodelist=slurmnode2
#SBATCH --time=00:05:00
#SBATCH --output=%x_%j.txt

export OMP_NUM_THREADS=1
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/code/count_tokens.py" \
    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json
echo "done"

# %% [markdown]
# The second cell submits eight jobs. It also **drains** `slurmnode2`, as before a repair: no new job starts there
# until you resume the node, a few cells below. `--dependency=afterok:51` waits until job 51 has succeeded,
# `afterany:51` until it has ended either way. A job with `--exclusive` shares its node with no other job.

# %% tags=["explore"]
%%bash
submit() { sbatch --parsable --output=megatron/logs/%x_%j.txt "$@"; }  # prints only the job ID
rm -f megatron/logs/tokens.json
scontrol update NodeName=slurmnode2 State=DRAIN Reason="memory is being replaced"
download=$(submit --job-name=download --wrap "exit 1")  # --wrap makes a script of one line
submit --job-name=train --exclusive --wrap "sleep 900"
submit --job-name=sweep --exclusive --wrap "sleep 900"
submit --job-name=backup --begin=now+6hours --wrap "hostname"
draft=$(submit --job-name=draft --hold --wrap "hostname")
submit --job-name=evaluate --dependency=afterok:$draft --wrap "hostname"
submit --job-name=tokenize --dependency=afterok:$download --wrap "hostname"
cd code && sbatch count.sh
sleep 3
squeue
sinfo --list-reasons

# %% [markdown]
# The last column is for people. `--format` prints the reason alone, here after the job ID and the name.

# %% tags=["explore"]
!squeue --noheader --states=PENDING --format="%i %j: %r"

# %% [markdown]
# | what `squeue` says | why the job waits | what makes it start |
# |---|---|---|
# | `Resources`, `Priority` | other jobs have the nodes, or come first | time |
# | `BeginTime` | submitted with `--begin`, or requeued | time |
# | `Dependency` | other jobs | those jobs |
# | `DependencyNeverSatisfied` | a job that had to succeed has failed | `scontrol update JobId=53 Dependency=afterok:51,afterany:52` listing only the dependencies to keep; an empty `Dependency=` removes all of them |
# | `JobHeldUser` | held by you | `scontrol release 53` |
# | `ReqNodeNotAvail, UnavailableNodes:...` | it names nodes that are down or drained | a repair, or `scontrol update JobId=53 ReqNodeList=` with the nodes to keep, or with nothing for any node |
# | `PartitionTimeLimit` | its time limit exceeds the partition's | `scontrol update JobId=53 TimeLimit=60` (minutes) |
#
# There are [many more](https://slurm.schedmd.com/job_reason_codes.html), and Slurm shows one at a time: a job that is
# held *and* names a drained node shows only one of the two reasons, and the other one appears when the first is gone.
# So a diagnosis from that column can be wrong. Look at what each job asked for:

# %% tags=["explore"]
queue = queues.read()
for job in queue["jobs"]:
    print(job)
print({name: value for name, value in queue.items() if name != "jobs"})

# %% [markdown]
# ### Exercise 2: unblock the queue
#
# Write a function that returns the commands after which *every* pending job will start sooner or later, without anyone
# touching the queue again. Interfere as little as possible:
#
# - A job that would start by itself, or after the jobs that it waits for, gets no command.
# - A dependency that can still be fulfilled stays, because it has a purpose.
# - A job that requests more time than its partition allows gets all the time that the partition allows.
#
# `afterok` is fulfilled when the other job has succeeded, and `afterany` when it has ended, either way. A job that is
# neither pending nor in `failed` is running or has succeeded. A job that names several nodes needs all of them. Assume
# that every job that starts succeeds, and that drained nodes stay drained.

# %% answer="unblock"
def unblock(jobs, drained, limit, failed):
    """Return the scontrol commands that let all pending jobs start (a list of strings).

    Args:
        jobs: the pending jobs, a list of dictionaries: "job" (its ID, an int), "name", "held" (whether you hold it),
            "nodes" (the nodes that it must run on), "minutes" (its time limit), and "after" (what it waits for, a
            list of pairs such as ["afterok", 17]).
        drained: the names of the nodes on which no job can start.
        limit: the partition's time limit in minutes.
        failed: the IDs of the jobs that have failed, a list of ints.
    """
    ### BEGIN SOLUTION
    commands = []
    for job in jobs:
        update = f"scontrol update JobId={job['job']}"
        if job["held"]:
            commands.append(f"scontrol release {job['job']}")
        if set(job["nodes"]) & set(drained):
            commands.append(f"{update} ReqNodeList=")
        if job["minutes"] > limit:
            commands.append(f"{update} TimeLimit={limit}")
        possible = [(kind, other) for kind, other in job["after"] if kind != "afterok" or other not in failed]
        if len(possible) < len(job["after"]):
            commands.append(f"{update} Dependency=" + ",".join(f"{kind}:{other}" for kind, other in possible))
    return commands
    ### END SOLUTION

# %% tags=["check-setup"]
import re
import shlex

COMMAND = re.compile(r"scontrol (?:(release)|update JobId=(\d+) (ReqNodeList|NodeList|TimeLimit|Dependency)=)(\S*)",
                     re.I)


def pending(number, held=False, nodes=(), minutes=30, after=()):
    """Return a pending job of the exercise."""
    return {"job": number, "name": f"job{number}", "held": held, "nodes": list(nodes), "minutes": minutes,
            "after": [list(one) for one in after]}


def mistake(case, commands):
    """Apply commands to a modeled queue; return what is wrong with them, or an empty string.

    Args:
        case: the arguments of the exercise's function.
        commands: what it returned.
    """
    if not isinstance(commands, list) or not all(isinstance(one, str) for one in commands):
        return f"Return a list of strings, not {commands!r}."
    drained, limit, failed = set(case["drained"]), case["limit"], set(case["failed"])
    jobs = {job["job"]: job for job in case["jobs"]}
    now = {number: dict(job) for number, job in jobs.items()}

    def hopeless(job):
        return [[kind, other] for kind, other in job["after"] if kind == "afterok" and other in failed]

    for command in commands:
        try:
            plain = " ".join(shlex.split(command))  # as the shell does
        except ValueError:  # an unmatched quote
            plain = command
        words = re.sub(r"^scontrol release (?:JobId=)?(\d+)$", r"scontrol release\1", plain, flags=re.I)
        match = COMMAND.fullmatch(words)
        number = int(match[2] or match[4] or 0) if match and (match[2] or match[4].isdecimal()) else None
        if number not in jobs:
            return f"{command!r} is not a command from the table about a pending job."
        job, field = jobs[number], (match[3] or "release").lower()
        if field == "release":
            if not job["held"]:
                return f"{command!r}: job {number} is not held. What does it wait for?"
            now[number]["held"] = False
        elif field in ("reqnodelist", "nodelist"):
            if not drained & set(job["nodes"]):
                return f"{command!r}: no node that job {number} must run on is drained, so leave it its nodes."
            now[number]["nodes"] = match[4].split(",") if match[4] else []
            if not set(now[number]["nodes"]) <= set(job["nodes"]):
                return f"{command!r}: job {number} did not ask for this node. List only nodes that it keeps, or none."
        elif field == "timelimit":
            if job["minutes"] <= limit:
                return f"{command!r}: the partition allows the time that job {number} requests."
            if match[4].removesuffix(":00") != str(limit):
                return f"{command!r}: the partition allows {limit} minutes. Request all of them."
            now[number]["minutes"] = limit
        elif not re.fullmatch(r"0?|after\w+(?::\d+)+(?:,after\w+(?::\d+)+)*", match[4]):
            return f"{command!r} is not a command from the table about a pending job."
        else:
            after = [[kind, int(other)] for kind, others in re.findall(r"(after\w+)((?::\d+)+)", match[4])
                     for other in others[1:].split(":")]
            # What has ended already fulfills an afterany, so that may go, too.
            kept = [one for one in job["after"] if one[1] not in failed]
            after = [one for one in after if one[0] != "afterany" or one[1] not in failed]
            if not hopeless(job):
                return (f"{command!r}: every job that job {number} waits for can still do what it waits for. It starts "
                        "by itself once they have.")
            if sorted(after) != sorted(kept) and all(one in after for one in kept):
                return f"{command!r}: after this, job {number} still waits for a job that has failed."
            if sorted(after) != sorted(kept):
                return (f"{command!r}: job {number} also waited for something that can still happen, and no longer "
                        "does.")
            now[number]["after"] = after
    for number, job in now.items():
        if job["held"]:
            return f"Job {number} is still held."
        if drained & set(job["nodes"]):
            return f"Job {number} can still only run on a node that is drained."
        if job["minutes"] > limit:
            return f"Job {number} still requests more time than the partition allows."
        if hopeless(job):
            return f"Job {number} still waits for the success of a job that has failed."
    if len(set(commands)) < len(commands):
        return "You return the same command twice."
    return ""

# %% check="unblock" points=4
for case in ({"jobs": [pending(31), pending(34, after=[("afterok", 29)]), pending(35, nodes=["node2"]),
                       pending(36, nodes=["node1"]), pending(38, held=True), pending(40, minutes=600)],
              "drained": ["node2"], "limit": 60, "failed": [29]},
             {"jobs": [pending(21, after=[("afterok", 19)]), pending(19, after=[("afterok", 17), ("afterany", 12)]),
                       pending(17, held=True, nodes=["node3", "node2"]),
                       pending(20, after=[("afterok", 12), ("afterok", 21), ("afterany", 22)]),
                       pending(22, after=[("afterany", 12), ("afterok", 9)])],
              "drained": ["node2"], "limit": 60, "failed": [12]},
             {"jobs": [], "drained": [], "limit": 60, "failed": []}):
    wrong = mistake(case, check.call(unblock, case["jobs"], case["drained"], case["limit"], case["failed"]))
    check.that(not wrong, f"{wrong}")
### BEGIN HIDDEN TESTS
def drawn_jobs(source):
    """Draw a queue: its jobs and the IDs of those that have failed."""
    numbers = source.sample(range(1, 500), source.randrange(1, 12))
    ended = [number + 500 for number in source.sample(range(1, 500), 4)]
    jobs = []
    for at, number in enumerate(numbers):
        others = source.sample([*numbers[:at], *ended], source.choice([0, 0, 1, min(3, at + 4)]))
        jobs.append(pending(number, held=source.random() < 0.2,
                            nodes=source.sample([f"node{one}" for one in range(6)], source.choice([0, 0, 1, 2])),
                            minutes=source.choice([5, 30, 90, 2000]),
                            after=[(source.choice(["afterok", "afterany"]), other) for other in others]))
    source.shuffle(jobs)
    return [jobs, ended[:2]]


for one in check.draw(30, queue=drawn_jobs, drained=lambda source: source.sample(["node1", "node2", "node4"], 2),
                      limit=range(60, 1500)):
    case = {"jobs": one["queue"][0], "failed": one["queue"][1], "drained": one["drained"], "limit": one["limit"]}
    wrong = mistake(case, check.call(unblock, case["jobs"], case["drained"], case["limit"], case["failed"]))
    check.that(not wrong, f"{wrong}")
### END HIDDEN TESTS

# %% [raw] mutant="unblock" hint="did not ask for this node"
# -            commands.append(f"{update} ReqNodeList=")
# +            commands.append(f"{update} ReqNodeList=slurmnode1")

# %% [raw] mutant="unblock" hint="can still do what it waits for"
# -        possible = [(kind, other) for kind, other in job["after"] if kind != "afterok" or other not in failed]
# +        possible = [(kind, other) for kind, other in job["after"] if other not in failed]

# %% [raw] mutant="unblock" hint="can still do what it waits for"
# -        if len(possible) < len(job["after"]):
# +        if job["after"]:

# %% [raw] mutant="unblock" hint="no longer does"
# -            commands.append(f"{update} Dependency=" + ",".join(f"{kind}:{other}" for kind, other in possible))
# +            commands.append(f"{update} Dependency=")

# %% [raw] mutant="unblock" hint="not a command from the table"
# -            commands.append(f"{update} Dependency=" + ",".join(f"{kind}:{other}" for kind, other in possible))
# +            commands.append(f"{update} Dependency=" + (",".join(f"{kind}:{other}" for kind, other in possible) or "None"))

# %% [raw] mutant="unblock" hint="not a command from the table"
# -            commands.append(f"{update} Dependency=" + ",".join(f"{kind}:{other}" for kind, other in possible))
# +            commands.append(f"{update} Dependency=" + "?".join(f"{kind}:{other}" for kind, other in possible))

# %% [raw] mutant="unblock" hint="the success of a job that has failed"
# -        if len(possible) < len(job["after"]):
# +        if len(possible) < len(job["after"]) and not possible:

# %% [raw] mutant="unblock" hint="on a node that is drained"
# -        if set(job["nodes"]) & set(drained):
# +        if set(job["nodes"]) & set(drained) and not job["held"]:

# %% [raw] mutant="unblock" hint="on a node that is drained"
# -        if set(job["nodes"]) & set(drained):
# +        if job["nodes"] and set(job["nodes"]) <= set(drained):

# %% [raw] mutant="unblock" hint="leave it its nodes"
# -        if set(job["nodes"]) & set(drained):
# +        if job["nodes"]:

# %% [raw] mutant="unblock" hint="Request all of them"
# -            commands.append(f"{update} TimeLimit={limit}")
# +            commands.append(f"{update} TimeLimit={limit // 2}")

# %% [raw] mutant="unblock" hint="is still held"
# -        if job["held"]:
# +        if job["held"] and not job["nodes"]:

# %% [raw] mutant="unblock" hint="not a command from the table"
# -            commands.append(f"scontrol release {job['job']}")
# +            commands.append(f"scontrol release {job['name']}")

# %% [markdown]
# Now prove your diagnosis. The next cell runs your commands on the real queue. If you are right, no job waits for
# anything but a free node, a date, or a job that will start, and all jobs are still there.

# %% tags=["explore"]
for command in unblock(**queue):
    print(result(command))
    subprocess.run(shlex.split(command), check=True)
time.sleep(3)
!squeue

# %% [markdown]
# The count job was one of them: its script names the drained node. Ask for what a job needs, and let Slurm find a node
# that has it.
#
# The repair is over, so the next cell resumes the node and cancels all jobs. Your colleague then submits the count once
# more, to see whether the repaired node works. `jobs.wait()` waits until the job that this notebook submitted last has
# ended.

# %% tags=["explore"]
%%bash
for name in train sweep backup draft evaluate tokenize count; do scancel --me --name=$name; done
scontrol update NodeName=slurmnode2 State=RESUME
cd code && sbatch count.sh
squeue

# %% tags=["explore"]
count = jobs.wait()

# %% [markdown]
# ## Which rank failed first?
#
# Slurm reports that the count job is `COMPLETED`. So where is its result?

# %% tags=["explore"]
!ls megatron/logs/tokens.json
!wc -l {count.log}
!tail -n 12 {count.log}

# %% [markdown]
# There is no result, but a long log. (It is in `code/`.) A job's exit code is that of its script, and a script's is that of its last
# command: here `echo`, which succeeded.
#
# The last lines of the log name a rank, but no error. When one rank of a distributed program fails, the others lose
# their connection to it, and fail with errors of their own. Then `torchrun` stops whatever is left and prints a
# summary, which names the rank that ended first. So look for the **first cause**: an error that is not a consequence
# of another one. `failures.reports` finds the first error of each rank in a log:

# %% tags=["explore"]
for report in failures.reports(count.log.read_text()):
    print(report)

# %% [markdown]
# You recognize a consequence by its text. It comes from the library that ranks communicate through, which is **Gloo**
# on CPUs and **NCCL** on GPUs:
#
# | text in the error of a rank that lost the others | who prints it |
# |---|---|
# | `Connection closed by peer`, `Connection reset by peer`, `Broken pipe` | Gloo, or the operating system |
# | `Timed out waiting` | Gloo, after its timeout |
# | `remote process exited` | NCCL |
# | `Watchdog caught collective operation timeout` | PyTorch's NCCL watchdog, after 10 minutes by default |
#
# The last one is hard to diagnose, because nothing crashes: the ranks wait in a **collective**, an operation in which
# all ranks take part, until a thread in each of them, the *watchdog*, loses patience. This is rank 0 of
# [a job](https://github.com/hiyouga/LlamaFactory/issues/7396) that waited in its 1,580th collective:
#
# ```text
# [rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout:
# WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600060
# milliseconds before timing out.
# ```
#
# So a rank that reports this did *arrive* at a collective, and is usually a victim. Which rank did not arrive? Often it
# is one whose log ends without any error, because it hangs in a data loader or was killed together with its node. Or it
# arrived somewhere else: in [another job](https://github.com/NVIDIA/nccl/issues/1409), the collective with
# `SeqNum=80078` was a `BROADCAST` of 5,056 elements on rank 7 and an `ALLREDUCE` of 2,106,881 on rank 3. Their programs
# had taken different branches.

# %% [markdown]
# ### Exercise 3: whom to suspect
#
# Return the ranks whose own program you would look at first. You get the first error of each rank that reported one,
# in any order, and the collective that it waited for, if the watchdog names one.
#
# Return every rank that failed by itself or kept the others waiting, and none of their victims. Once a rank has failed
# *by itself*, `torchrun` stops the ranks that remain, so then neither silence nor another collective proves anything.
# If none has, look for the ranks that kept the others waiting. The two jobs above show what a timeout proves about the
# rank that reports it, and about ranks that report nothing. A rank that only lost its connection is a victim, wherever
# it was. Most ranks are where they should be. If every rank arrived at the same collective, the network may be to
# blame, but no program is: return an empty list.

# %% answer="suspects"
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting",
        "remote process exited", "Watchdog caught collective operation timeout")


def suspects(reports, world_size):
    """Return the ranks whose program may have failed first, a sorted list of ints.

    Args:
        reports: a list of dictionaries: "rank" (an int), "error" (a string), and "waits_for", which is None or a
            dictionary with the "number" (int), "operation" (string), and "elements" (int) of a collective.
        world_size: the number of ranks, 0 to world_size - 1.
    """
    ### BEGIN SOLUTION
    own = [report["rank"] for report in reports if not any(words in report["error"] for words in LOST)]
    if own:
        return sorted(own)
    silent = {*range(world_size)} - {report["rank"] for report in reports}
    if silent:
        return sorted(silent)
    at = {report["rank"]: tuple(report["waits_for"].values()) for report in reports if report["waits_for"]}
    places = [*at.values()]
    majority = max(places, key=places.count, default=None)
    return sorted(rank for rank, place in at.items() if place != majority)
    ### END SOLUTION

# %% tags=["check-setup"]
def unlucky(rank, text="RuntimeError: Connection closed by peer"):
    """Return the report of a rank that lost its connection, or that failed with another error."""
    return {"rank": rank, "error": text, "waits_for": None}


def timeout(rank, number=57, operation="ALLREDUCE", elements=1048576):
    """Return the report of a rank whose watchdog gave up, as PyTorch 2 prints it."""
    return {"rank": rank, "error": "Watchdog caught collective operation timeout: "
            f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, "
            f"Timeout(ms)=600000) ran for {600000 + 7 * rank} milliseconds before timing out.",
            "waits_for": {"number": number, "operation": operation, "elements": elements}}

# %% check="suspects" points=4
check.function(
    suspects,
    cases=[([unlucky(1), unlucky(4, "RuntimeError: the batch has 0 samples"), unlucky(3), unlucky(0, "KeyError: 'lr'")], 6),
           ([timeout(3), timeout(0), timeout(1)], 4),
           ([timeout(3), timeout(0), timeout(2, operation="BROADCAST", elements=5056), timeout(1)], 4),
           ([timeout(1), timeout(0), timeout(2, elements=5056), timeout(3)], 4),
           ([timeout(2), timeout(1), timeout(0)], 3),
           ([timeout(0), unlucky(1), timeout(3), timeout(2), timeout(4)], 6)],
    expected=[[0, 4], [2], [2], [2], [], [5]],
    hints={
        "A rank whose watchdog gave up had arrived at a collective. It is probably a victim.":
            [None, [0, 1, 3], [0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2], None],
        "A rank that reports nothing is not innocent: the others may have waited for it.":
            [None, [], None, None, None, []],
        "All ranks that report something wait, but not for the same collective: compare what they wait for.":
            [None, None, [], None, None, None],
        "Ranks 0 and 4 failed by themselves, so they explain the silence of the others.":
            [[2, 5], None, None, None, None, None],
        "Rank 4 failed by itself, too. A RuntimeError can be a cause: look at its text, not at its type, and return every "
        "rank that failed by itself.":
            [[0], None, None, None, None, None],
        "Two all-reduces may still be two different ones: compare their elements, too.":
            [None, None, None, [], None, None],
        "All three ranks arrived at the same collective, so no rank kept the others waiting.":
            [None, None, None, None, [0], None],
        "A rank that only lost its connection is a victim.": [None, None, None, None, None, [1, 5]],
        "Several ranks have errors of their own, and the order of a log proves nothing. Return all of them.":
            [[4], None, None, None, None, None],
    })
### BEGIN HIDDEN TESTS
def drawn_failure(source):
    """Draw the reports of a failed job; return them, the number of ranks, and the ranks to suspect."""
    ranks = source.randrange(4, 40)
    kind = source.choice(["own", "silent", "elsewhere", "network"])
    guilty = sorted(source.sample(range(ranks), source.randrange(1, max(2, ranks // 4 + 1))))
    number = source.randrange(2, 10**6)
    other = source.choice([{"operation": "BROADCAST"}, {"elements": 5056}, {"number": number - 1}])
    where = {"number": number, "operation": source.choice(["ALLREDUCE", "_REDUCE_SCATTER_BASE"]), "elements": 10**7}
    odd = {**where, **other}
    reports = []
    for rank in range(ranks):
        if rank in guilty and kind == "own":
            reports.append(unlucky(rank, source.choice([
                "ValueError: axes don't match array", "RuntimeError: CUDA error: device-side assert triggered",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "AssertionError"])))
        elif rank in guilty and kind == "elsewhere":
            reports.append(timeout(rank, **odd))
        elif not (rank in guilty and kind == "silent") and not (kind == "own" and source.random() < 0.3):
            reports.append(source.choice([timeout(rank, **where)] * 3 + [unlucky(rank, source.choice([
                "RuntimeError: Connection reset by peer", "BrokenPipeError: [Errno 32] Broken pipe",
                "torch.distributed.DistBackendError: NCCL error, remote process exited"]))]))
    if kind == "elsewhere":  # a clear majority elsewhere
        reports = [one if one["rank"] in guilty else timeout(one["rank"], **where) for one in reports]
    source.shuffle(reports)
    return [reports, ranks, [] if kind == "network" else guilty]


drawn = check.draw(40, failure=drawn_failure)
check.function(suspects, cases=[tuple(one["failure"][:2]) for one in drawn],
               expected=[one["failure"][2] for one in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="suspects" hint="probably a victim"
# -        "remote process exited", "Watchdog caught collective operation timeout")
# +        "remote process exited")

# %% [raw] mutant="suspects" hint="is not innocent"
# -    if silent:
# +    if silent and not reports:

# %% [raw] mutant="suspects" hint="only lost its connection"
# -    silent = {*range(world_size)} - {report["rank"] for report in reports}
# +    silent = {*range(world_size)} - {report["rank"] for report in reports if report["waits_for"]}

# %% [raw] mutant="suspects" hint="compare what they wait for"
# -    return sorted(rank for rank, place in at.items() if place != majority)
# +    return []

# %% [raw] mutant="suspects" hint="compare their elements"
# -    at = {report["rank"]: tuple(report["waits_for"].values()) for report in reports if report["waits_for"]}
# +    at = {report["rank"]: report["waits_for"]["operation"] for report in reports if report["waits_for"]}

# %% [raw] mutant="suspects" hint="explain the silence"
# -    if own:
# +    if own and len(reports) == world_size:

# %% [raw] mutant="suspects" hint="not at its type"
# -    own = [report["rank"] for report in reports if not any(words in report["error"] for words in LOST)]
# +    own = [report["rank"] for report in reports if not any(words in report["error"] for words in LOST)
# +           and not report["error"].startswith("RuntimeError")]

# %% [raw] mutant="suspects" hint="kept the others waiting"
# -    majority = max(places, key=places.count, default=None)
# -    return sorted(rank for rank, place in at.items() if place != majority)
# +    majority = max(places, key=places.count, default=None)
# +    return sorted(rank for rank, place in at.items() if place != majority) or [0]

# %% [raw] mutant="suspects" hint="the order of a log proves nothing"
# -        return sorted(own)
# +        return own[:1]

# %% [markdown]
# Whom do you suspect in the log of the count job?

# %% tags=["explore"]
reports = failures.reports(count.log.read_text())
for rank in suspects(reports, 4):
    print("suspect:", result(f"rank {rank}"), *(one["error"] for one in reports if one["rank"] == rank))

# %% [markdown]
# ## Prove the cause
#
# Rank 0 could not write the result, and the others waited for it. But the folder `megatron/logs` exists. So why was it
# not found? There are two suspects:
#
# - **The node.** The job ran on `slurmnode2`, which has just been repaired. "It no longer mounts our files,"
#   says your colleague.
# - **The folder.** Your files are in the **workspace**, and `LAB_HOME` holds its path, here and in every job. A path
#   such as `megatron/logs/tokens.json` is **relative**: it starts at the current folder, for a job the one in which
#   `sbatch` was called. That was `code/` this time, but your colleague always submits from the workspace.
#
# You have an opinion by now. An opinion becomes a proof by an experiment that comes out one way if you are right and
# another way if you are not.

# %% [markdown]
# ### Exercise 4: design the experiment
#
# Write `code/experiment.sh`, a copy of `code/count.sh` (above Exercise 2) for **one** experiment that decides between
# the two suspects. Like the job that failed, it is submitted from `code/`. Its outcome, whichever it is, must tell you
# which suspect is to blame. The check runs your script with stand-ins for `srun` and `torchrun`, and judges the job
# that it would start.

# %% answer="experiment"
%%writefile code/experiment.sh
#!/bin/bash
# Decide whether the node or the folder is to blame.
### BEGIN SOLUTION
#SBATCH --job-name=experiment
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --nodelist=slurmnode2
#SBATCH --time=00:05:00
#SBATCH --output=%x_%j.txt

export OMP_NUM_THREADS=1
cd "$LAB_HOME"  # the only change: the same node, another folder
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/code/count_tokens.py" \
    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json
### END SOLUTION

# %% check="experiment" points=3
from itertools import pairwise


def require_one_change(job):
    """Require that exactly one of the two suspects differs from the job that failed."""
    check.that((job.nodes, job.ranks_per_node) == (1, 4) and job.run.cpus_per_task == "4",
               f"It starts {job.nodes} x {job.ranks_per_node} ranks on {job.run.cpus_per_task or 1} CPUs instead of 1 x 4 "
               "on 4. The more you change, the less its outcome proves.")
    words = " ".join(job.run.arguments).replace("=", " ").split()
    files = {flag: job.run.absolute(path) for flag, path in pairwise(words)}
    check.that(files.get("--data") == "$LAB_HOME/data/bpe-4096/text_document.bin",
               f"It reads {files.get('--data')}. The job that failed could read its data, so leave them alone.")
    failing, right = (f"$LAB_HOME{folder}/megatron/logs/tokens.json" for folder in ("/code", ""))
    result = files.get("--result")
    check.that(result in (failing, right),
               f"It writes {result}, which neither the job that failed nor your colleague's jobs do.")
    nodes = job.directives.get("nodelist") or (
        "slurmnode1" if job.directives.get("exclude") == "slurmnode2" else "")  # there are two nodes
    check.that(nodes, "Without --nodelist, Slurm picks the node, and you don't know which one your experiment is about.")
    moved, elsewhere = result == right, nodes != "slurmnode2"
    check.that(not (moved and elsewhere), f"It runs on {nodes} and writes {result}: both suspects have changed. If it "
               "works, which of the two changes was it?")
    check.that(moved or elsewhere, "It runs on the same node as the job that failed, and writes to the same "
               "path. Change one of the two: where it runs, or where it writes.")


require_one_change(check.program("code/experiment.sh", "count_tokens.py", submitted_from="code"))
### BEGIN HIDDEN TESTS
for trial in check.draw(2, job_id=range(2, 10**6), ends=range(1, 120)):
    require_one_change(check.program("code/experiment.sh", "count_tokens.py", submitted_from="code",
                                     job_id=trial["job_id"], ends=trial["ends"]))
### END HIDDEN TESTS

# %% [raw] mutant="experiment" hint="both suspects have changed"
# -#SBATCH --nodelist=slurmnode2
# +#SBATCH --nodelist=slurmnode1

# %% [raw] mutant="experiment" hint="leave them alone"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json
# +    --data "$LAB_HOME/data/text_document.bin" --result megatron/logs/tokens.json

# %% [raw] mutant="experiment" hint="Slurm picks the node"
# -#SBATCH --nodelist=slurmnode2

# %% [raw] mutant="experiment" hint="It runs on the same node"
# -cd "$LAB_HOME"  # the only change: the same node, another folder

# %% [raw] mutant="experiment" hint="neither the job that failed"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json
# +    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result /tmp/tokens.json

# %% [raw] mutant="experiment" hint="The more you change"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \

# %% [markdown]
# Run it, from the folder in which the job failed:

# %% tags=["explore"]
!cd code && rm -f ../megatron/logs/tokens.json && sbatch experiment.sh

# %% tags=["explore"]
experiment = jobs.wait()
!ls megatron/logs/tokens.json
!grep -h "Error\|counted" {experiment.log} | head -n 3

# %% [markdown]
# If you changed the folder, the job succeeds on the node under suspicion, so the node is innocent. If you changed the
# node, it fails as before, which says the same. Had you changed both, its success would have told you nothing.
#
# An **absolute** path, such as `$LAB_HOME/megatron/logs/tokens.json`, works from everywhere.
#
# Slurm also resolves a relative path in `--output` from the folder in which `sbatch` was called; that is why the log is in
# `code/`. If the log's folder does not exist, the job fails without a log. A typical exit code is `0:53`:

# %% tags=["explore"]
!sbatch --output=no/such/folder/%j.txt --wrap hostname
lost = jobs.wait()
!sacct -j {lost.job} --format=JobID,JobName,State,ExitCode

# %% [markdown]
# ### Exercise 5: a script that runs at night
#
# From tonight on, the job runs while you sleep, and it counts several texts, one after another. The script's arguments
# are their folders in `data/`: `sbatch code/my_count.sh bpe-4096 wiki` first counts
# `data/bpe-4096/text_document.bin`. Some texts may be missing or damaged. Write `code/my_count.sh`, so that in the
# morning
#
# 1. you have the counts of every text that could be counted, whatever happened to the others, and whichever folder the
#    job was submitted from. Those of `data/wiki` are in `megatron/logs/wiki.json` in the workspace;
# 2. `sacct` shows the job as `FAILED` if a text could not be counted, and otherwise as `COMPLETED`;
# 3. the job has not waited for one particular node.
#
# Keep what you did not have to change in `code/count.sh` (above Exercise 2): the four ranks, their CPUs, and the log. A
# text takes seconds, so the time limit may stay.
# In bash, `"$@"` holds the script's arguments. A command that succeeds has exit code 0. A script has the exit code of
# its last command, or 3 after `exit 3`, and that exit code is all Slurm knows about failures inside the script.

# %% answer="my-count"
%%writefile code/my_count.sh
#!/bin/bash
# Count the tokens of several texts: sbatch my_count.sh FOLDER...
### BEGIN SOLUTION
#SBATCH --job-name=count
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:05:00
#SBATCH --output=%x_%j.txt

export OMP_NUM_THREADS=1
failed=0
for text in "$@"; do
    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
        "$LAB_HOME/code/count_tokens.py" \
        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
done
exit "$failed"
### END SOLUTION

# %% check="my-count" points=3
from itertools import pairwise


def require_counts(texts, failing, code=1, folder="code", job_id=1):
    """Require the right runs and the right exit code of the job that counts some texts.

    Args:
        texts: the script's arguments.
        failing: those of the texts that cannot be counted.
        code: the exit code of a count that fails.
        folder: the folder in which the job is submitted.
        job_id: the job's ID.
    """
    job = check.program("code/my_count.sh", "count_tokens.py", arguments=texts, times=None, job_id=job_id,
                        submitted_from=folder, ends={text: code for text in failing},
                        finds=[f"data/{text}/text_document.bin" for text in texts])
    check.that("nodelist" not in job.directives and "exclude" not in job.directives,
               "It still depends on certain nodes. When one of them is drained, the job may wait forever.")
    check.that(job.directives.get("output", "").replace("%x", "count") in ("count_%j.txt", "./count_%j.txt"),
               "The log is somewhere else now. --output=%x_%j.txt works from every folder.")
    counted = {}
    for run in job.runs:
        check.that((run.nodes, run.ranks_per_node) == (1, 4),
                   f"It starts {run.nodes} x {run.ranks_per_node} ranks instead of 1 x 4.")
        check.that(run.cpus_per_task == "4", "Its ranks no longer share 4 CPUs: leave --cpus-per-task as it was.")
        check.that(run.port == "0", "torchrun no longer picks a free port, so two such jobs on one node collide: leave "
                   "--standalone as it was.")
        check.that(run.absolute(run.trainer) == "$LAB_HOME/code/count_tokens.py",
                   f"Submitted from {folder}, it starts {run.absolute(run.trainer)}, which does not exist.")
        words = " ".join(run.arguments).replace("=", " ").split()
        files = {flag: run.absolute(path) for flag, path in pairwise(words)}
        counted[files.get("--data")] = files.get("--result")
    story = f"Its arguments are {' '.join(texts)}, and " + (
        f"{' and '.join(failing)} cannot be counted" if failing else "all can be counted")
    for text in texts:
        data, result = f"$LAB_HOME/data/{text}/text_document.bin", f"$LAB_HOME/megatron/logs/{text}.json"
        check.that(data in counted, f"{story}. Submitted from {folder}, it counts {', '.join(map(str, counted))}. What "
                   f"about {data}?")
        check.that(counted[data] == result, f"Submitted from {folder}, it writes the counts of {text} to {counted[data]}. "
                   "Does every text have a file of its own, wherever the job starts?")
    check.that(not failing or job.status, f"{story}: each failed count has exit code {code}, but the script's is 0, "
               "which Slurm shows as COMPLETED. (Bash keeps exit codes modulo 256.)")


require_counts(["bpe-4096", "wiki-en", "books-3"], [])
require_counts(["bpe-4096", "wiki-en", "books-3"], ["wiki-en"])
require_counts(["wiki-en"], ["wiki-en"], code=7, folder=".")
require_counts(["news-24", "bpe-4096"], ["bpe-4096"], folder="megatron/logs")
### BEGIN HIDDEN TESTS
FOLDERS = ("bpe-4096", "wiki-en", "books-3", "news-24", "law_2", "code.py3")


def drawn_night(source):
    texts = source.sample(FOLDERS, source.randint(3, 5))
    return texts, source.sample(texts, source.randint(1, 2))


for trial in check.draw(2, night=drawn_night, code=range(1, 120), job_id=range(2, 10**6)):
    require_counts(*trial["night"], code=trial["code"], job_id=trial["job_id"])
require_counts(["wiki-en", "bpe-4096", "books-3"], ["wiki-en", "bpe-4096"], code=128)
### END HIDDEN TESTS

# %% [raw] mutant="my-count" hint="What about"
# -export OMP_NUM_THREADS=1
# +set -euo pipefail
# +export OMP_NUM_THREADS=1
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json"

# %% [raw] mutant="my-count" hint="which Slurm shows as COMPLETED"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json"

# %% [raw] mutant="my-count" hint="which Slurm shows as COMPLETED"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json"
# +    failed=$?

# %% [raw] mutant="my-count" hint="modulo 256"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json"
# +    failed=$((failed + $?))

# %% [raw] mutant="my-count" hint="What about"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || exit $?

# %% [raw] mutant="my-count" hint="a file of its own"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json" || failed=1

# %% [raw] mutant="my-count" hint="wherever the job starts"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "megatron/logs/$text.json" || failed=1

# %% [raw] mutant="my-count" hint="wherever the job starts"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "$LAB_HOME/data/$text/text_document.bin" --result "../megatron/logs/$text.json" || failed=1

# %% [raw] mutant="my-count" hint="What about"
# -        --data "$LAB_HOME/data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1
# +        --data "../data/$text/text_document.bin" --result "$LAB_HOME/megatron/logs/$text.json" || failed=1

# %% [raw] mutant="my-count" hint="What about"
# -for text in "$@"; do
# +for text in "$1"; do

# %% [raw] mutant="my-count" hint="which does not exist"
# -        "$LAB_HOME/code/count_tokens.py" \
# +        count_tokens.py \

# %% [raw] mutant="my-count" hint="depends on certain nodes"
# -#SBATCH --cpus-per-task=4
# +#SBATCH --cpus-per-task=4
# +#SBATCH -w slurmnode1

# %% [raw] mutant="my-count" hint="instead of 1 x 4"
# -    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
# +    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \

# %% [raw] mutant="my-count" hint="leave --standalone as it was"
# -    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
# +    srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nproc_per_node 4 \

# %% [raw] mutant="my-count" hint="leave --cpus-per-task as it was"
# -#SBATCH --cpus-per-task=4
# +#SBATCH --cpus-per-task=1

# %% [raw] mutant="my-count" hint="works from every folder"
# -#SBATCH --output=%x_%j.txt
# +#SBATCH --output=megatron/logs/%x_%j.txt

# %% [markdown]
# A rehearsal, from `code/` and with a text that does not exist:

# %% tags=["explore"]
!cd code && sbatch my_count.sh missing bpe-4096

# %% tags=["explore"]
night = jobs.wait()
!cat megatron/logs/bpe-4096.json
!sacct -j {night.job} --format=JobID,JobName,State,ExitCode

# %% [markdown]
# The missing text could not be counted, the other one was, and Slurm shows the job as `FAILED`. A job that depends on
# this one with `afterok` would not start.

# %% [markdown]
# ## Discuss
#
# 1. **Why a queue?** What would go wrong if ten people logged in to a node and started their training there?
# 2. **The time limit.** Your run needs between 3 and 5 hours. Which limit do you request, and what can the program do
#    so that a limit that is too short costs little?
# 3. **Nobody to suspect.** All 1,024 ranks of a job report a timeout in the same collective. What may have happened,
#    and which experiment would show it?

# %% [markdown]
# ## Cleanup
#
# Leave nothing running, and no node drained.

# %% tags=["explore"]
!rm -rf megatron/checkpoints/dp_single_node code/count_*.txt
!squeue
!sinfo

# %% [markdown]
# ## What you have learned
#
# Some jobs would have waited forever: for a node that they named, for you to release them, or for a job that had
# failed. The count then failed on rank 0, an experiment showed why, and the script's last command had hidden it from
# Slurm. For jobs of the course's trainer, `lab top` and `lab report JOBID` find the first cause.
#
# **To submit your work,** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>), which contains your scripts, and run
# `lab validate 00_welcome` in a terminal. It runs your answers as grading will, and gives a verdict on each exercise.
#
# In [the next lab](01_cluster_and_hardware.ipynb), you find out what the cluster is made of, and how fast it can be.
#
# ## Read next
#
# - [Yoo, Jette, and Grondona, 2003](https://doi.org/10.1007/10968987_3), *SLURM: Simple Linux Utility for Resource
#   Management*: the scheduler's paper, with `srun` and `squeue` already in it.
# - Slurm's [quick start](https://slurm.schedmd.com/quickstart.html) and [job reason
#   codes](https://slurm.schedmd.com/job_reason_codes.html): all commands on one page, and all reasons.
# - [Bekman, *Machine Learning
#   Engineering*](https://github.com/stas00/ml-engineering/tree/master/orchestration/slurm): Slurm for people who
#   train models.
# - [Zhang et al., 2022](https://arxiv.org/abs/2205.01068), *OPT*: Section 2.5 describes how two months on 992 GPUs
#   survived at least 35 manual restarts.
