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
# You need to know PyTorch, but nothing about Slurm. Run the cells from top to bottom with
# <kbd>Shift</kbd>+<kbd>Enter</kbd>.

# %% tags=["setup"]
import os
import re

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
import time
from subprocess import check_output

from job_monitor import logs
from labcore.colors import mark, result
from lablib import jobs, plots

jobs.connect()
!sinfo

# %% [markdown]
# `slurmnode[1-2]` is short for `slurmnode1` and `slurmnode2`, and nodes whose `STATE` is `idle` are free. A
# **partition** is a set of nodes that you can submit jobs to; the asterisk marks the default. If your nodes are
# called `slurmnode`, you are on the course's own cluster: a real Slurm, whose nodes share one machine.
#
# `code/dp_single_node.sh` trains a small GPT on one node, on the CPU. How many minutes will 1,000 steps take? Commit
# to a number before you run the job: guesses are not graded, but you will remember the answer better.

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
    print("It has not trained three steps yet: run this cell again.")
for line in steps[-2:]:
    print(mark(line, r"iteration +\d+/ *\d+", r"iteration \(ms\): [^ |]+", r"batch size: +\d+", "lm loss: [^ |]+"))

# %% [markdown]
# Leave it running.
#
# ## Answers and checks
#
# In an exercise, replace the line that says *Your turn*, and run that cell. The cell below it checks your answer, as
# often as you like; attempts are not counted. Keep everything that your answer needs, such as an `import`, in the
# answer's own cell, because cells that you add are not graded. Grading adds hidden checks, which ask the same
# question with other numbers.

# %% [markdown]
# ### Exercise 1: from tokens to steps
#
# This one is a warm-up. **Give a wrong answer first, on purpose,** to see what a hint looks like.
#
# A language model reads **tokens**, which are pieces of words. A **sample** is a row of tokens, as many as the
# *sequence length*. In each step, or **iteration**, the model trains on a *global batch* of samples. How many steps
# does it take to train on **at least** a given number of tokens?

# %% answer="steps-for"
def steps_for(tokens, global_batch, sequence_length):
    """Return the smallest number of steps that trains on at least `tokens` tokens.

    Args:
        tokens: how many tokens to train on.
        global_batch: samples per step.
        sequence_length: tokens per sample.
    """
    ### BEGIN SOLUTION
    per_step = global_batch * sequence_length
    return -(-tokens // per_step)  # integer division that rounds up
    ### END SOLUTION

# %% check="steps-for" points=1
check.function(
    steps_for,
    cases=[{"tokens": 1_000_000, "global_batch": 4, "sequence_length": 256},
           {"tokens": 8192, "global_batch": 8, "sequence_length": 256},
           {"tokens": 3073, "global_batch": 4, "sequence_length": 256}],
    expected=[977, 4, 4],
    hints={
        "That is not enough: after these steps, some tokens are left. Round up.": [976, 4, 3],
        "That would be steps that train on one token of each sample. How many tokens does a sample have?":
            [250_000, 1024, 769],
        "That would be steps that train on one sample each. How many samples does a step have?":
            [3907, 32, 13],
        "A fraction of a step cannot run: return an int.": [976.5625, 4.0, 3.0009765625],
        "The number is right, but it is a float: return an int.": [977.0, 4.0, 4.0],
        "That is one step too many if the division comes out even.": [977, 5, 4],
    })
### BEGIN HIDDEN TESTS
check.function(
    steps_for,
    cases=check.draw(20, tokens=range(1, 10**9), global_batch=[1, 4, 48, 512, 1536],
                     sequence_length=[256, 1024, 2048]),
    expected=lambda tokens, global_batch, sequence_length:
        -(-tokens // (global_batch * sequence_length)))
check.function(
    steps_for,
    cases=[{"tokens": 3 * 4 * 256, "global_batch": 4, "sequence_length": 256},
           {"tokens": 3 * 4 * 256 + 1, "global_batch": 4, "sequence_length": 256}],
    expected=[3, 4])
### END HIDDEN TESTS

# %% [raw] mutant="steps-for" hint="Round up"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens // (global_batch * sequence_length)

# %% [raw] mutant="steps-for" hint="Round up"
# def steps_for(tokens, global_batch, sequence_length):
#     return round(tokens / (global_batch * sequence_length))

# %% [raw] mutant="steps-for" hint="one token of each sample"
# def steps_for(tokens, global_batch, sequence_length):
#     return -(-tokens // global_batch)

# %% [raw] mutant="steps-for" hint="one sample each"
# def steps_for(tokens, global_batch, sequence_length):
#     return -(-tokens // sequence_length)

# %% [raw] mutant="steps-for" hint="return an int"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens / (global_batch * sequence_length)

# %% [raw] mutant="steps-for" hint="but it is a float"
# def steps_for(tokens, global_batch, sequence_length):
#     return float(-(-tokens // (global_batch * sequence_length)))

# %% [raw] mutant="steps-for" hint="comes out even"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens // (global_batch * sequence_length) + 1

# %% [markdown]
# Llama 3 405B was trained on [15.6 trillion tokens](https://arxiv.org/abs/2407.21783). With your job's batch:

# %% tags=["explore"]
needed = steps_for(156 * 10**11, 4, 256)
print(f"15.6 trillion tokens at 4 samples of 256 tokens per step: {result(f'{needed:,}')} steps")

# %% [markdown]
# ## How fast, and how much longer?
#
# From left to right, each log line shows the iteration and how many there will be, the samples consumed so far, the
# **step time** in milliseconds, the learning rate, the global batch size, and the loss. Two numbers that you will
# look for in every log follow from them: the **throughput** in tokens per second, and the time that is left.

# %% [markdown]
# ### Exercise 2: read the pace from one line
#
# Write a function that returns both numbers. Assume that the run keeps its pace.

# %% answer="progress"
def progress(line, sequence_length):
    """Read the throughput and the remaining time from an iteration line of a log.

    Args:
        line: the line, a string.
        sequence_length: tokens per sample.

    Returns a tuple of two floats: tokens per second, and the minutes that are left.
    """
    ### BEGIN SOLUTION
    step, last = re.search(r"iteration +(\d+)/ *(\d+)", line).groups()
    seconds = float(re.search(r"\(ms\): ([\d.]+)", line)[1]) / 1000
    batch = int(re.search(r"global batch size: +(\d+)", line)[1])
    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
    ### END SOLUTION

# %% tags=["check-setup"]
def iteration_line(iteration, last, milliseconds, batch=64):
    """Return an iteration line as the trainer logs it.

    Args:
        iteration: the step that the line is about.
        last: the number of steps of the run.
        milliseconds: the step time.
        batch: the global batch size.
    """
    return (f" iteration {iteration:8d}/{last:8d} | consumed samples: {iteration * batch:12d} | "
            f"elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: 1.500E-04 | "
            f"global batch size: {batch:5d} | lm loss: 5.114205E+00 | loss scale: 1.0 | "
            "grad norm: 1.107 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |")

# %% check="progress" points=2
check.function(
    progress, rel=1e-3,
    cases=[(iteration_line(200, 800, 512.0), 1024), (iteration_line(90, 100, 1640.5, 8), 256),
           (iteration_line(50, 50, 64.0), 128)],
    expected=[(128_000.0, 5.12), (1248.4, 0.273417), (128_000.0, 0.0)],
    hints={
        "The first number counts samples per second. How many tokens does a sample have?":
            [(125.0, 5.12), (4.87656, 0.273417), (1000.0, 0.0)],
        "The first number counts the tokens of one sample per second. How many samples does a step have?":
            [(2000.0, 5.12), (156.05, 0.273417), (2000.0, 0.0)],
        "The second number is in seconds.":
            [(128_000.0, 307.2), (1248.4, 16.405), (128_000.0, 0.0)],
        "The numbers are in the wrong order: return the tokens per second first.":
            [(5.12, 128_000.0), (0.273417, 1248.4), (0.0, 128_000.0)],
        "The step time in the log is in milliseconds.":
            [(128.0, 5120.0), (1.2484, 273.417), (128.0, 0.0)],
        "The second number is the time of the whole run. Part of it is over.":
            [(128_000.0, 6.82667), (1248.4, 2.73417), (128_000.0, 0.0533333)],
        "The second number is the time that has passed, not the time that is left.":
            [(128_000.0, 1.70667), (1248.4, 2.46075), (128_000.0, 0.0533333)],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, iteration=range(1, 10_000), more=range(1, 10_000), batch=[8, 48, 512],
                   milliseconds=check.between(3.0, 9000.0, digits=1), length=[256, 1024, 2048])
check.function(
    progress, rel=1e-3,
    cases=[(iteration_line(one["iteration"], one["iteration"] + one["more"], one["milliseconds"],
                           one["batch"]), one["length"]) for one in drawn],
    expected=[(1000 * one["batch"] * one["length"] / one["milliseconds"],
               one["more"] * one["milliseconds"] / 60_000) for one in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="progress" hint="counts samples per second"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return batch / seconds, (int(last) - int(step)) * seconds / 60

# %% [raw] mutant="progress" hint="tokens of one sample per second"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return sequence_length / seconds, (int(last) - int(step)) * seconds / 60

# %% [raw] mutant="progress" hint="in the wrong order"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return (int(last) - int(step)) * seconds / 60, batch * sequence_length / seconds

# %% [raw] mutant="progress" hint="is in seconds"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds

# %% [raw] mutant="progress" hint="is in milliseconds"
# -    seconds = float(re.search(r"\(ms\): ([\d.]+)", line)[1]) / 1000
# +    seconds = float(re.search(r"\(ms\): ([\d.]+)", line)[1])

# %% [raw] mutant="progress" hint="the time of the whole run"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return batch * sequence_length / seconds, int(last) * seconds / 60

# %% [raw] mutant="progress" hint="time that has passed"
# -    return batch * sequence_length / seconds, (int(last) - int(step)) * seconds / 60
# +    return batch * sequence_length / seconds, int(step) * seconds / 60

# %% [markdown]
# How fast is your own job, and how good was your prediction? With the iteration set to 1, nearly the whole run is
# left.

# %% tags=["explore"]
latest = logs.lines(first.log, "elapsed time")[-1]
speed, left = progress(latest, 256)
print(f"{result(f'{speed:,.0f}')} tokens/s, {result(f'{left:.1f}')} minutes left")
total = progress(re.sub(r"iteration +\d+/", "iteration 1/", latest), 256)[1]
check.compare("minutes for 1,000 steps", guess_minutes, total)

# %% [markdown]
# `lab top` shows the same for each **rank**. A rank is one process of a distributed program; this job has two, and
# each trains on its own samples. The **loss** measures how badly the model predicts the next token; has it fallen?
# You have seen enough of this run, so the cell also cancels it.

# %% tags=["explore"]
!lab top --once
!scancel {first.job}
plots.loss(first_job=logs.read(first.log))

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
# Lines that begin with `#SBATCH` are **directives**: comments to the shell, requests to Slurm. Together they are the
# script's **header**. Slurm runs the script on the job's first node. `srun` then starts the job's **tasks** on its
# nodes, one here, and `torchrun` starts four ranks in it.
#
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
# That table is for people; a program should ask for exactly what it needs. `%i` is the job ID, `%j` the name, `%r`
# the reason, and `%E` the unfulfilled dependencies. (For short: `-h -t PD -o`.)

# %% tags=["explore"]
!squeue --noheader --states=PENDING --format="%i|%j|%r|%E"

# %% [markdown]
# | reason | why the job waits | what makes it start |
# |---|---|---|
# | `Resources`, `Priority` | other jobs have the nodes, or come first | time |
# | `BeginTime` | submitted with `--begin`, or requeued | time |
# | `ReqNodeNotAvail, Reserved for maintenance` | might not end before the maintenance | time |
# | `Dependency` | other jobs | those jobs |
# | `DependencyNeverSatisfied` | a job that had to succeed has failed | `scontrol update JobId=53 Dependency=` |
# | `JobHeldUser`, `JobHeldAdmin` | held | `scontrol release`, by you or by the administrator |
# | `ReqNodeNotAvail, UnavailableNodes:...` | its nodes are down or drained | a repair, or other nodes |
# | `PartitionTimeLimit` | its time limit exceeds the partition's | `scontrol update JobId=53 TimeLimit=60` (minutes) |
# | `PartitionDown` | its partition is closed | the administrator |
#
# There are many [more](https://slurm.schedmd.com/job_reason_codes.html). Slurm shows one at a time, so another may
# appear when the first is gone. A job that asks for more than any node has never waits: `sbatch` refuses it.

# %% [markdown]
# ### Exercise 3: which jobs will never start?
#
# Find all pending jobs that cannot start unless somebody acts. `evaluate` waits for `draft`, which is held, yet its
# own reason is an innocent `Dependency`. So follow the dependencies, along chains of any length. A comma in that
# column means that *all* of them must be fulfilled. A job that is not in the table is running, and will end. The
# checks use only the reasons above.

# %% answer="never-start"
def never_start(table):
    """Find the pending jobs that need somebody to act before they can start.

    Args:
        table: the output of squeue --noheader --states=PENDING --format="%i|%r|%E", a string with
            a line for each job, such as "12|Dependency|afterok:9(unfulfilled),afterany:11(unfulfilled)".

    Returns their job IDs, a list of ints, in the order of the table.
    """
    ### BEGIN SOLUTION
    rows = [line.split("|") for line in table.splitlines()]
    stuck = {int(job) for job, reason, _ in rows
             if reason.startswith(("DependencyNever", "JobHeld", "Partition"))
             or "UnavailableNodes" in reason}
    size = -1
    while size != len(stuck):  # until no more jobs are found
        size = len(stuck)
        stuck |= {int(job) for job, _, dependencies in rows
                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
    return [int(job) for job, _, _ in rows if int(job) in stuck]
    ### END SOLUTION

# %% check="never-start" points=4
reasons = """\
31|Resources|(null)
32|Priority|(null)
33|BeginTime|(null)
34|DependencyNeverSatisfied|afterok:29(failed)
35|ReqNodeNotAvail, UnavailableNodes:slurmnode2|(null)
36|ReqNodeNotAvail, Reserved for maintenance|(null)
37|Dependency|afterok:30(unfulfilled)
38|JobHeldUser|(null)
39|JobHeldAdmin|(null)
40|PartitionTimeLimit|(null)
41|PartitionDown|(null)
"""
chains = """\
7|Priority|(null)
21|Dependency|afterok:19(unfulfilled)
18|Dependency|afterok:5(unfulfilled),afterany:17(unfulfilled)
19|Dependency|afterany:18(unfulfilled)
20|Dependency|afterok:7(unfulfilled)
170|Priority|(null)
171|Dependency|afterok:170(unfulfilled)
22|Dependency|afternotok:17(unfulfilled)
17|JobHeldUser|(null)
"""
check.function(
    never_start, cases=[(reasons,), (chains,), ("",)],
    expected=[[34, 35, 38, 39, 40, 41], [21, 18, 19, 22, 17], []],
    hints={
        "A job whose dependency will never start will never start, either, be it afterok, afterany, or afternotok. Its "
        "own reason does not show that.":
            [[34, 35, 38, 39, 40, 41], [17], []],
        "You followed the dependencies one step. Chains can be longer.":
            [[34, 35, 38, 39, 40, 41], [18, 22, 17], []],
        "Job 18 waits for two jobs, and one of them will never start.":
            [[34, 35, 38, 39, 40, 41], [22, 17], []],
        "Job 21 is above the job that it waits for: one pass from top to bottom is not enough.":
            [[34, 35, 38, 39, 40, 41], [18, 19, 22, 17], []],
        "Reserved for maintenance: the nodes come back when the maintenance is over.":
            [[34, 35, 36, 38, 39, 40, 41], [21, 18, 19, 22, 17], []],
        "BeginTime passes by itself.":
            [[33, 34, 35, 38, 39, 40, 41], [21, 18, 19, 22, 17], []],
        "Not every dependency is hopeless. A job that is not in the table is running, and one with the reason "
        "Priority will get its turn.":
            [[34, 35, 37, 38, 39, 40, 41], [21, 18, 19, 20, 171, 22, 17], []],
        "Return job IDs as ints.":
            [["34", "35", "38", "39", "40", "41"], ["21", "18", "19", "22", "17"], []],
        "Job 171 waits for job 170, which is not job 17.":
            [[34, 35, 38, 39, 40, 41], [21, 18, 19, 171, 22, 17], []],
    })
### BEGIN HIDDEN TESTS
STUCK = ["DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin", "PartitionDown", "PartitionTimeLimit",
         "ReqNodeNotAvail, UnavailableNodes:slurmnode[3-4]", "ReqNodeNotAvail, UnavailableNodes:gpu7"]
PATIENT = ["Resources", "Priority", "BeginTime", "ReqNodeNotAvail, Reserved for maintenance"]


def any_queue(source):
    """Draw a queue; return its table and the jobs that will never start."""
    numbers = sorted(source.sample(range(1, 130), source.randrange(1, 14)))
    stuck, rows = set(), []
    for at, number in enumerate(numbers):
        kind = source.choice(["stuck", "patient", "patient", "waits", "waits", "waits"])
        if kind == "waits":
            known = numbers[max(0, at - 4):at] + [number + 130]  # the last one is running
            others = source.sample(known, source.randrange(1, min(3, len(known)) + 1))
            rows.append((number, "Dependency", ",".join(
                f"{source.choice(['afterok', 'afterany', 'afternotok'])}:{one}(unfulfilled)" for one in others)))
            if stuck & set(others):
                stuck.add(number)
            continue
        reason = source.choice(STUCK if kind == "stuck" else PATIENT)
        if kind == "stuck":
            stuck.add(number)
        rows.append((number, reason, "afterok:400(failed)" if reason.startswith("Dependency") else "(null)"))
    source.shuffle(rows)
    return ("".join(f"{number}|{reason}|{dependencies}\n" for number, reason, dependencies in rows),
            [number for number, _, _ in rows if number in stuck])


drawn = check.draw(60, queue=any_queue)
check.function(never_start, cases=[(one["queue"][0],) for one in drawn],
               expected=[one["queue"][1] for one in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="never-start" hint="own reason does not show that"
# -    size = -1
# -    while size != len(stuck):  # until no more jobs are found
# -        size = len(stuck)
# -        stuck |= {int(job) for job, _, dependencies in rows
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}

# %% [raw] mutant="never-start" hint="be it afterok, afterany, or afternotok"
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
# +                  if stuck & set(map(int, re.findall(r"afterok:(\d+)", dependencies)))}

# %% [raw] mutant="never-start" hint="Chains can be longer"
# -    size = -1
# -    while size != len(stuck):  # until no more jobs are found
# -        size = len(stuck)
# -        stuck |= {int(job) for job, _, dependencies in rows
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
# +    stuck |= {int(job) for job, _, dependencies in rows
# +              if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}

# %% [raw] mutant="never-start" hint="one of them will never start"
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
# +                  if set(map(int, re.findall(r":(\d+)", dependencies) or [0])) <= stuck}

# %% [raw] mutant="never-start" hint="one pass from top to bottom"
# -    size = -1
# -    while size != len(stuck):  # until no more jobs are found
# -        size = len(stuck)
# -        stuck |= {int(job) for job, _, dependencies in rows
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
# +    for job, _, dependencies in rows:
# +        if stuck & set(map(int, re.findall(r":(\d+)", dependencies))):
# +            stuck.add(int(job))

# %% [raw] mutant="never-start" hint="the maintenance is over"
# -             or "UnavailableNodes" in reason}
# +             or "ReqNodeNotAvail" in reason}

# %% [raw] mutant="never-start" hint="BeginTime passes by itself"
# -             if reason.startswith(("DependencyNever", "JobHeld", "Partition"))
# +             if reason.startswith(("DependencyNever", "JobHeld", "Partition", "Begin"))

# %% [raw] mutant="never-start" hint="Not every dependency is hopeless"
# -             if reason.startswith(("DependencyNever", "JobHeld", "Partition"))
# +             if reason.startswith(("Dependency", "JobHeld", "Partition"))

# %% [raw] mutant="never-start" hint="Return job IDs as ints"
# -    return [int(job) for job, _, _ in rows if int(job) in stuck]
# +    return [job for job, _, _ in rows if int(job) in stuck]

# %% [raw] mutant="never-start" hint="which is not job 17"
# -                  if stuck & set(map(int, re.findall(r":(\d+)", dependencies)))}
# +                  if any(f":{one}" in dependencies for one in stuck)}

# %% [markdown]
# What does your function say about the real queue?

# %% tags=["explore"]
queue = check_output(["squeue", "--noheader", "--states=PENDING", "--format=%i|%r|%E"], text=True)
for job in never_start(queue):
    name = check_output(["squeue", "--noheader", f"--jobs={job}", "--format=%j"], text=True).strip()
    print("will never start:", job, result(name))

# %% [markdown]
# The count job is among them: its script names the drained node. Ask for what a job needs, and let Slurm find a node
# that has it.
#
# Cancel the other jobs, and resume the node, so that the count can start. `jobs.wait()` waits until the job that this
# notebook submitted last has ended.

# %% tags=["explore"]
%%bash
for name in train sweep backup draft evaluate download tokenize; do scancel --me --name=$name; done
scontrol update NodeName=slurmnode2 State=RESUME
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
# There is no result, but a long log. (It is in `code/`, because Slurm resolves a relative path in `--output` from the
# folder in which `sbatch` was called.) A job's exit code is that of its script, and a script's is that of its last
# command: here `echo`, which succeeded.
#
# The last lines of the log name a rank, but no error. When one rank of a distributed program fails, the others lose
# their connection to it, and fail with errors of their own. Then `torchrun` stops whatever is left and prints a
# summary. So look for the **first cause**: the first error that is not a consequence of another one.
#
# PyTorch begins each line of a rank's traceback with the rank, such as `[rank2]: `. The line after the indented ones
# has the error itself. (Its message may go on for more lines, which are not indented, either.)

# %% tags=["explore"]
!grep -nE "^\[rank[0-9]+\]: [A-Za-z]" {count.log}

# %% [markdown]
# You recognize a consequence by its text. It comes from the library that ranks communicate through, which is **Gloo**
# on CPUs and **NCCL** on GPUs:
#
# | text in the error of a rank that lost a connection | who prints it |
# |---|---|
# | `Connection closed by peer`, `Connection reset by peer`, `Broken pipe` | Gloo, or the operating system |
# | `Timed out waiting` | Gloo, after its timeout |
# | `remote process exited` | NCCL |

# %% [markdown]
# ### Exercise 4: the first cause
#
# Find the first cause in any such log. Consequences may come before it, because the lines of several processes arrive
# in any order; the lines of one traceback stay together. If several ranks have errors of their own, return the first
# one in the log. Do not rely on the summary: a `torchrun` knows only its own ranks, and the one that ended first may
# have lost its connection to another node.

# %% answer="first-cause"
LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out waiting",
        "remote process exited")

def first_cause(log):
    """Find the rank that failed first, and its error.

    Args:
        log: the text of a log, a string.

    Returns a tuple of the rank, an int, and its error's line without the prefix, such as
    (2, "ValueError: the batch is empty"); None if every rank's error is a consequence.
    """
    ### BEGIN SOLUTION
    # An error is the line after an indented one.
    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
        if not any(words in text for words in LOST):
            return int(rank), text
    return None
    ### END SOLUTION

# %% tags=["check-setup"]
def failed_log(errors, blamed, node="slurmnode1"):
    """Return the log of a job whose ranks failed, as torchrun and srun leave it.

    Args:
        errors: the rank and the error of each failed rank, in the order of the log.
        blamed: the rank that torchrun's summary names as the first to fail.
        node: the node of that rank.
    """
    lines = ["using world size: 24",
             "[rank0]:[W1123 11:49:55.120 socket.cpp:760] [c10d] The IPv6 network addresses of (node1, 29500) "
             "cannot be retrieved (gai error: -2 - Name or service not known)."]
    for rank, error in errors:
        lines += [f"[rank{rank}]: {text}" for text in [
            "Traceback (most recent call last):", '  File "/work/ada/train.py", line 85, in <module>', "    main()",
            '  File "/work/ada/train.py", line 61, in main', "    raise RuntimeError(message)",
            "          ^^^^^^^^^^^^^^^^^^^^", *error.splitlines()]]
    lines += ["W1123 11:49:56.649 575 torch/distributed/elastic/api.py:1028] Sending process 602 closing signal",
              "Traceback (most recent call last):", '  File "/usr/bin/torchrun", line 8, in <module>',
              "    sys.exit(main())", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
              "=" * 60, "train.py FAILED", "-" * 60, "Root Cause (first observed failure):", "[0]:",
              f"  host      : {node}", f"  rank      : {blamed} (local_rank: {blamed % 4})",
              "  exitcode  : 1 (pid: 601)", "=" * 60, f"srun: error: {node}: task 0: Exited with exit code 1"]
    return "\n".join(lines) + "\n"

# %% check="first-cause" points=4
closed = "RuntimeError: Connection closed by peer"
late = "RuntimeError: Timed out waiting 1800000ms"
exited = "torch.distributed.DistBackendError: NCCL error, remote process exited"
refused = "Last error:\nsocketProgressOpt: call to recv failed: Connection refused"  # NCCL has more to tell
check.function(
    first_cause,
    cases=[(failed_log([(0, "OSError: [Errno 28] No space left on device"), (1, closed), (3, closed)], blamed=0),),
           (failed_log([(1, closed), (4, "RuntimeError: the batch has 0 samples"), (5, "KeyError: 'lr'"),
                        (0, "BrokenPipeError: [Errno 32] Broken pipe"), (2, "ValueError: the loss is NaN"),
                        (3, late)], blamed=3),),
           (failed_log([(5, f"{exited}\n{refused}"), (17, "KeyError: 'text'"), (4, closed)], blamed=4),),
           (failed_log([(5, closed), (7, "AssertionError")], blamed=5),),
           (failed_log([(2, late), (0, closed)], blamed=2),)],
    expected=[(0, "OSError: [Errno 28] No space left on device"), (4, "RuntimeError: the batch has 0 samples"),
              (17, "KeyError: 'text'"), (7, "AssertionError"), None],
    hints={
        "The rank is an int.": [("0", "OSError: [Errno 28] No space left on device"), "", "", "", ""],
        "That is a line of the program, which the traceback shows. The error itself is not indented.":
            [(0, "    raise RuntimeError(message)"), "", "", "", ""],
        "That is the first error in the log, and it is a consequence: this rank lost its connection.":
            ["", (1, "RuntimeError: Connection closed by peer"),
             (5, "torch.distributed.DistBackendError: NCCL error, remote process exited"),
             (5, "RuntimeError: Connection closed by peer"), (2, "RuntimeError: Timed out waiting 1800000ms")],
        "That is the rank that torchrun's summary names. That rank may only have lost its connection.":
            ["", (3, "RuntimeError: Timed out waiting 1800000ms"),
             (4, "RuntimeError: Connection closed by peer"), "", ""],
        "A RuntimeError can be a cause: look at its text, not at its type.":
            ["", (5, "KeyError: 'lr'"), "", "", ""],
        "That is the last cause in the log, and the lowest rank that has one. The first one in the log counts.":
            ["", (2, "ValueError: the loss is NaN"), "", "", ""],
        "That is a later line of rank 5's message. The error is in the line after the indented ones.":
            ["", "", (5, "Last error:"), "", ""],
        "A rank can have more than one digit.": ["", "", None, "", ""],
        "An error without a message, such as AssertionError, has no colon.": ["", "", "", None, ""],
        "All errors in this log are consequences, so the cause is not among them.":
            ["", "", "", "", (0, "RuntimeError: Connection closed by peer")],
    })
### BEGIN HIDDEN TESTS
OWN = ["ValueError: axes don't match array", "RuntimeError: CUDA error: device-side assert triggered",
       "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "AssertionError",
       "FileNotFoundError: [Errno 2] No such file or directory: 'b.txt'", "RuntimeError: shape '[4]' is invalid",
       "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "KeyError: 'text'"]


def any_log(source):
    """Draw a log; return it and its first cause."""
    ranks = source.sample(range(24), source.randrange(1, 7))
    errors = [(rank, source.choice([*OWN, closed, late, f"{exited}\n{refused}",
                                    "RuntimeError: Connection reset by peer",
                                    "BrokenPipeError: [Errno 32] Broken pipe"])) for rank in ranks]
    causes = [(rank, error) for rank, error in errors if error in OWN]
    return failed_log(errors, source.choice(ranks)), causes[0] if causes else None


drawn = check.draw(60, log=any_log)
check.function(first_cause, cases=[(one["log"][0],) for one in drawn],
               expected=[one["log"][1] for one in drawn])
### END HIDDEN TESTS

# %% [raw] mutant="first-cause" hint="it is a consequence"
# -        if not any(words in text for words in LOST):
# +        if True:

# %% [raw] mutant="first-cause" hint="summary names"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# -        if not any(words in text for words in LOST):
# -            return int(rank), text
# -    return None
# +    blamed = int(re.search(r"rank      : (\d+)", log)[1])
# +    return blamed, re.findall(rf"^\[rank{blamed}\]: (\w.*)$", log, re.M)[-1]

# %% [raw] mutant="first-cause" hint="not at its type"
# -        if not any(words in text for words in LOST):
# +        if not text.startswith("RuntimeError") and not any(words in text for words in LOST):

# %% [raw] mutant="first-cause" hint="The first one in the log counts"
# -        if not any(words in text for words in LOST):
# -            return int(rank), text
# -    return None
# +        if not any(words in text for words in LOST):
# +            found.append((int(rank), text))
# +    return min(found, default=None)
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# +    found = []
# +    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):

# %% [raw] mutant="first-cause" hint="The first one in the log counts"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# +    for rank, text in reversed(re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M)):

# %% [raw] mutant="first-cause" hint="more than one digit"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# +    for rank, text in re.findall(r"^\[rank\d\]:  .*\n\[rank(\d)\]: (\w.*)$", log, re.M):

# %% [raw] mutant="first-cause" hint="has no colon"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# +    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w[\w.]*: .*)$", log, re.M):

# %% [raw] mutant="first-cause" hint="a later line of rank 5's message"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# -        if not any(words in text for words in LOST):
# +    for rank, text in re.findall(r"^\[rank(\d+)\]: (\w.*)$", log, re.M):
# +        if not text.startswith("Traceback") and not any(words in text for words in LOST):

# %% [raw] mutant="first-cause" hint="a line of the program"
# -    for rank, text in re.findall(r"^\[rank\d+\]:  .*\n\[rank(\d+)\]: (\w.*)$", log, re.M):
# +    for rank, text in re.findall(r"^\[rank(\d+)\]: (.*Error.*)$", log, re.M):

# %% [raw] mutant="first-cause" hint="The rank is an int"
# -            return int(rank), text
# +            return rank, text

# %% [raw] mutant="first-cause" hint="All errors in this log are consequences"
# -    return None
# +    return int(rank), text

# %% [markdown]
# What does it find in the log of the count job?

# %% tags=["explore"]
print("first cause:", result(str(first_cause(count.log.read_text()))))

# %% [markdown]
# Rank 0 could not write the result; the others waited for it. But the folder `megatron/logs` exists. So why was it
# not found?
#
# Your files are in the **workspace**, and `LAB_HOME` holds its path, here and in every job. A path such as
# `megatron/logs/tokens.json` is **relative**: it starts at the current folder, for a job the one in which `sbatch`
# was called. That was `code/` this time, but your colleague always submits from the workspace. An **absolute** path,
# such as `$LAB_HOME/megatron/logs/tokens.json`, works from everywhere.
#
# Relative paths in `--output` are worse: if the log's folder does not exist, the job fails without a log. A typical
# exit code is `0:53`:

# %% tags=["explore"]
!sbatch --output=no/such/folder/%j.txt --wrap hostname
lost = jobs.wait()
!sacct -j {lost.job} --format=JobID,JobName,State,ExitCode

# %% [markdown]
# ### Exercise 5: repair the script
#
# Write `code/my_count.sh`, a repaired copy of `code/count.sh` (above Exercise 3). It must
#
# 1. start on any free node;
# 2. write the result to `megatron/logs/tokens.json` in the workspace, whichever folder it is submitted from;
# 3. fail, with the program's exit code, if the count fails. `set -euo pipefail` ends a script at the first command
#    that fails, even inside a pipe, and at variables that are not set.
#
# Everything else stays as it is. The check runs the script from two folders, with stand-ins for `srun` and `torchrun`
# that record how they are called.

# %% answer="my-count"
%%writefile code/my_count.sh
#!/bin/bash
# Count the tokens of the training text with four ranks, from any folder.
### BEGIN SOLUTION
#SBATCH --job-name=count
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --time=00:05:00
#SBATCH --output=%x_%j.txt
set -euo pipefail

export OMP_NUM_THREADS=1
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
    "$LAB_HOME/code/count_tokens.py" \
    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
echo "done"
### END SOLUTION

# %% check="my-count" points=2
from itertools import pairwise

# It starts four ranks on any node.
job = check.program("code/my_count.sh", "count_tokens.py", submitted_from="code")
check.that((job.nodes, job.ranks_per_node) == (1, 4),
           f"It starts {job.nodes} x {job.ranks_per_node} ranks instead of 1 x 4.")
check.that(job.run.cpus_per_task == "4", "Its ranks no longer share 4 CPUs: leave --cpus-per-task as it was.")
check.that("nodelist" not in job.directives and "exclude" not in job.directives,
           "It still depends on certain nodes. When one of them is drained, the job may wait forever.")
check.that(job.directives.get("output", "").replace("%x", "count") in ("count_%j.txt", "./count_%j.txt"),
           "The log is somewhere else now. --output=%x_%j.txt works from every folder.")
check.that(job.run.port == "0", "torchrun no longer picks a free port, so two such jobs on one node collide: leave "
           "--standalone as it was.")
# It reads and writes the right files, whichever folder it is submitted from, and fails if the program does.
failed = check.program("code/my_count.sh", "count_tokens.py", submitted_from=".", ends=1)
for folder, run in (("code", job.run), ("the workspace", failed.run)):
    words = " ".join(run.arguments).replace("=", " ").split()
    files = {flag: run.absolute(path) for flag, path in pairwise(words)}
    check.that(run.absolute(run.trainer) == "$LAB_HOME/code/count_tokens.py",
               f"Submitted from {folder}, it starts {run.absolute(run.trainer)}, which does not exist.")
    check.that(files.get("--data") == "$LAB_HOME/data/bpe-4096/text_document.bin",
               f"Submitted from {folder}, it counts the tokens of {files.get('--data')}.")
    check.that(files.get("--result") == "$LAB_HOME/megatron/logs/tokens.json",
               f"Submitted from {folder}, it writes the result to {files.get('--result')}. A relative path starts at "
               "the current folder.")
check.that(failed.status == 1, "The program failed with exit code 1, and the script ends with "
           f"{failed.status}. Slurm would show COMPLETED.")

# %% [raw] mutant="my-count" hint="depends on certain nodes"
# -#SBATCH --cpus-per-task=4
# +#SBATCH --cpus-per-task=4
# +#SBATCH -w slurmnode1

# %% [raw] mutant="my-count" hint="it writes the result to"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result megatron/logs/tokens.json

# %% [raw] mutant="my-count" hint="it writes the result to"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result ../megatron/logs/tokens.json

# %% [raw] mutant="my-count" hint="which does not exist"
# -    "$LAB_HOME/code/count_tokens.py" \
# +    count_tokens.py \

# %% [raw] mutant="my-count" hint="it counts the tokens of"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    --data data/bpe-4096/text_document.bin --result "$LAB_HOME/megatron/logs/tokens.json"

# %% [raw] mutant="my-count" hint="it writes the result to"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result '$LAB_HOME/megatron/logs/tokens.json'

# %% [raw] mutant="my-count" hint="it writes the result to"
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result /work/ada/megatron/logs/tokens.json

# %% [raw] mutant="my-count" hint="Slurm would show COMPLETED"
# -set -euo pipefail

# %% [raw] mutant="my-count" hint="instead of 1 x 4"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 1 \

# %% [raw] mutant="my-count" hint="leave --standalone as it was"
# -srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --standalone --nproc_per_node 4 \
# +srun --cpus-per-task="$SLURM_CPUS_PER_TASK" torchrun --nproc_per_node 4 \

# %% [raw] mutant="my-count" hint="leave --cpus-per-task as it was"
# -#SBATCH --cpus-per-task=4
# +#SBATCH --cpus-per-task=1

# %% [raw] mutant="my-count" hint="there is no such folder when sbatch is called in code"
# -#SBATCH --output=%x_%j.txt
# -set -euo pipefail
# +#SBATCH --output=%x_%j.txt
# +#SBATCH --chdir=code
# +set -euo pipefail
# -    "$LAB_HOME/code/count_tokens.py" \
# -    --data "$LAB_HOME/data/bpe-4096/text_document.bin" --result "$LAB_HOME/megatron/logs/tokens.json"
# +    count_tokens.py --data ../data/bpe-4096/text_document.bin --result ../megatron/logs/tokens.json

# %% [raw] mutant="my-count" hint="works from every folder"
# -#SBATCH --output=%x_%j.txt
# +#SBATCH --output=megatron/logs/%x_%j.txt

# %% [markdown]
# Submit it from `code/` again:

# %% tags=["explore"]
!cd code && sbatch my_count.sh

# %% tags=["explore"]
repaired = jobs.wait()
!cat megatron/logs/tokens.json

# %% [markdown]
# ## A script of your own
#
# Two directives need a closer look before you write one.
#
# - **`--time`** is when Slurm kills the job. A limit that is too short costs you the run, but one that is too long
#   makes you wait: Slurm starts a short job early if it fits into a gap and delays no job ahead of it, called
#   [**backfill**](https://slurm.schedmd.com/sched_config.html). `90` means 90 minutes, `2:00` two *minutes*,
#   `2:00:00` two hours, and `1-12` a day and twelve hours.
# - **`--cpus-per-task`** is how many CPUs the ranks of a task share. [Since Slurm
#   22.05](https://slurm.schedmd.com/sbatch.html#OPT_cpus-per-task), `srun` ignores it unless you write `srun
#   --cpus-per-task="$SLURM_CPUS_PER_TASK"`; otherwise, all ranks of a task may share one CPU, and your job is slow
#   without a message. `OMP_NUM_THREADS` is how many CPU threads each rank computes with.
#
# In `--output`, Slurm replaces `%x` with the job name and `%j` with the job ID, but no shell variables such as
# `$LAB_HOME`.

# %% [markdown]
# ### Exercise 6: from an empty file to a job
#
# Write the header and the launch line of a script that trains the small GPT on two ranks:
#
# 1. the header: the name `my_first`, **one** node, **one** task per node, **4** CPUs per task, a time limit of **10
#    minutes**, and a log in `megatron/logs` with the job's name and ID in its name;
# 2. the launch line: `srun` passes the CPUs on to one `torchrun --standalone` (all ranks are on one node, at a port
#    of their own), which starts **two** ranks of `"$PROGRAM"` with the flags `$FLAGS`, without quotes, so that the
#    shell splits them into words.

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
if "ntasks" in header:  # the same on one node
    header.setdefault("ntasks-per-node", header["ntasks"])
asked = {"job-name": "my_first", "nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "4"}
wrong = [f"--{name} is {header.get(name, 'missing')} instead of {value}."
         for name, value in asked.items() if header.get(name) != value]
check.that(not wrong, "The header differs from the exercise. " + " ".join(wrong))
check.that(script.run.cpus_per_task == "4", "The tasks of srun do not get the job's 4 CPUs: pass --cpus-per-task on.")
check.that(script.run.port == "0", f"Every job uses port {script.run.port}, so two jobs on one node collide. With "
           "--standalone, torchrun picks a free port.")
limit = header.get("time", "missing")
check.that(seconds_of(limit) == 600,
           f"The time limit is {limit}, which is not 10 minutes. Two numbers with a colon are minutes and seconds.")
output = header.get("output", "").replace("%x", "my_first").removeprefix("./")
check.that(output.startswith("megatron/logs/") and "my_first" in output and "%j" in output,
           "The log belongs in megatron/logs, with the job's name (%x) and ID (%j) in its name.")

# %% [raw] mutant="my-first" hint="which is not 10 minutes"
# -#SBATCH --time=00:10:00
# +#SBATCH --time=00:10

# %% [raw] mutant="my-first" hint="which is not 10 minutes"
# -#SBATCH --time=00:10:00
# +#SBATCH --time=0-10

# %% [raw] mutant="my-first" hint="unbound variable"
# -#SBATCH --cpus-per-task=4
# +# SBATCH --cpus-per-task=4

# %% [raw] mutant="my-first" hint="The header differs from the exercise"
# -#SBATCH --ntasks-per-node=1

# %% [raw] mutant="my-first" hint="The log belongs in megatron/logs"
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
# The rest goes into starting Python and PyTorch and opening the text: nothing in a run of weeks, most of a short
# test.

# %% [markdown]
# ## Discuss
#
# 1. **Why a queue?** What would go wrong if ten people logged in to a node and started their training there?
# 2. **The time limit.** Your run needs between 3 and 5 hours. Which limit do you request, and what can the program do
#    so that a limit that is too short costs little?
# 3. **First, not last.** A job on 1,024 GPUs stops, and all 1,024 ranks log only errors about lost connections. What
#    may have happened, and where do you look next?

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
# The first job would have waited forever for the node that it named. In the second, rank 0 failed first, and the
# script's last command hid that from Slurm. For jobs of the course's trainer, `lab top` and `lab report JOBID` find
# the first cause.
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
