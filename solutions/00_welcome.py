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
# # Welcome: your first job
#
# This course is about training models that are too large for one computer. Such training runs on a
# **cluster**: many computers, called **nodes**, that one program hands out to many people. That program
# is called **Slurm** here, as on most of the large machines of the world. You know PyTorch; you need to
# know nothing about Slurm yet.
#
# **You will be able to**
#
# - hand a training to Slurm, watch it, read what it says, and stop it;
# - find your way round the workspace, and say where a job's log lies;
# - tell from one line of a log how long a training will go on;
# - find out why a job failed;
# - write a job script of your own;
# - answer exercises, read hints, and hand your work in.
#
# **How it works.** Cells run with <kbd>Shift</kbd>+<kbd>Enter</kbd>, from top to bottom. Run every one
# of them: most rest on those above. A `NameError` means that a cell further up has not run yet. Start
# with these two, which tell this notebook where your files are and how answers are checked.

# %% tags=["setup"]
import os

from labcore import workspace

os.chdir(workspace.home())  # all paths in this lab begin at the workspace

# %% tags=["check-setup"]
from labkit import check

# What answers cannot import: they would hold the solution.
check.mask("job_monitor.logs", "lab.notebook.jobs", "layout_estimator", "minimegatron",
           "pipeline_schedules", "slurmbox")

# %% [markdown]
# ## A job in one minute
#
# First connect this notebook to the cluster, and ask Slurm which nodes there are.

# %% tags=["explore"]
from job_monitor import logs
from lab import tensorboard
from lab.notebook import jobs, plots
from labcore.colors import mark, result

jobs.connect()
!sinfo

# %% [markdown]
# `NODES` says how many, `NODELIST` what they are called (`slurmnode[1-2]` is short for `slurmnode1`
# and `slurmnode2`), and `STATE` what they do: `idle` means that they wait for work.
#
# So give them some. `code/dp_single_node.sh` is a script that trains a small GPT for real, on this
# machine's CPU. How many seconds will it take until it is over, with 20 steps of training? Guess
# before you run: nobody counts how far off you were, but you will remember it. In place of the line
# below write `guess_seconds = ` and your number.

# %% nbgrader={"grade": false, "grade_id": "guess-seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_seconds = 30
### END SOLUTION

# %% [markdown]
# Now submit it. The `!` in front hands the line to a shell, as if you had typed it in a terminal. What
# follows the script's name goes to the training.

# %% tags=["explore"] short={"iters 20": "iters 4"}
!sbatch code/dp_single_node.sh --train-iters 20 --log-interval 1 --global-batch-size 4 --eval-iters 0
!squeue

# %% [markdown]
# That was quick: `sbatch` does not wait for the training. It put your script into a queue and gave you
# its number. `squeue` shows the queue. This cell waits for your latest job; if it says that the job is
# not over yet, run it again.

# %% tags=["explore"]
job = jobs.wait()

# %% tags=["explore"]
check.compare("seconds of the first job", guess_seconds, job.seconds)

# %% [markdown]
# Your job is done. All that it printed went into a file, its **log**: what it understood of its flags,
# what it did, and one line for every step of the training. These are the last few lines:

# %% tags=["explore"]
!tail -n 5 {job.log}

# %% [markdown]
# Did the model learn anything? The **loss** says how surprised it is by the text it reads; lower is
# better. `logs.read` collects the losses from the log, and `plots.loss` draws them.

# %% tags=["explore"]
plots.loss(first_job=logs.read(job.log))

# %% [markdown]
# The loss falls: the model has begun to learn which pieces of text follow which. That is a training on
# a cluster. The rest of this lab looks at each part of it again, slowly.
#
# ![The way of a job, from left to right. Your notebook hands a script to sbatch. Slurm puts it into a
# queue, where it is pending. When enough is free, it starts on a node, where it is running. What it
# prints goes into a log file in the workspace, which the notebook
# reads.](../images/way_of_a_job.svg)

# %% [markdown]
# ## Answers and checks
#
# In an exercise you replace a line that says *Your turn* by your answer, run the cell, and run the cell
# below it, which checks your answer at once. Try it the wrong way first: **answer the next exercise
# wrongly on purpose**, and see what a hint looks like. You may check as often as you like, and wrong
# tries cost nothing.
#
# Write all that your answer needs (an `import`, a function that helps) into the answer's own cell:
# cells that you add are not graded. Where your course has left them in, links above the answers lead
# to worked ones. You learn more if you follow them late.
#
# When your notebook is graded, your answers run once more. Each of them meets the check that you see,
# and others of the same kind with other numbers: what passes here because it knows these numbers does
# not pass there. You hand in the notebook itself; how, is at its end.

# %% [markdown]
# ### Exercise 1: from tokens to steps
#
# A language model reads **tokens**, pieces of words. A **sample** is a row of tokens, as long as the
# *sequence length*. In each step (the log calls it an *iteration*) the training reads as many samples
# as the *global batch* has. How many steps does it take to read **at least** a given number of tokens?

# %% nbgrader={"grade": false, "grade_id": "steps-for", "locked": false, "schema_version": 3, "solution": true, "task": false}
def steps_for(tokens, global_batch, sequence_length):
    """The smallest number of steps (an int) that reads at least so many tokens."""
    ### BEGIN SOLUTION
    per_step = global_batch * sequence_length
    return -(-tokens // per_step)  # a division that rounds up
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "steps-for-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    steps_for,
    cases=[{"tokens": 1_000_000, "global_batch": 4, "sequence_length": 256},
           {"tokens": 8192, "global_batch": 8, "sequence_length": 256}],
    expected=[977, 4],
    hints={
        "Not enough: the last step is needed although it will read more than what is left. "
        "Round up.": [976, 4],
        "Those would be steps that read one token of each sample; a sample has as many tokens as the "
        "sequence is long.": [250_000, 1024],
        "Those would be steps that read one sample each; a step reads a whole global batch.":
            [3907, 32],
        "A number of steps is whole: this is a fraction of one.": [976.5625, 4.0],
        "One too many where it comes out even.": [977, 5],
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

# %% [raw] tags=["mutant"] answer="steps-for" hint="Round up"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens // (global_batch * sequence_length)

# %% [raw] tags=["mutant"] answer="steps-for" hint="one token of each sample"
# def steps_for(tokens, global_batch, sequence_length):
#     return -(-tokens // global_batch)

# %% [raw] tags=["mutant"] answer="steps-for" hint="one sample each"
# def steps_for(tokens, global_batch, sequence_length):
#     return -(-tokens // sequence_length)

# %% [raw] tags=["mutant"] answer="steps-for" hint="a fraction of one"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens / (global_batch * sequence_length)

# %% [raw] tags=["mutant"] answer="steps-for" hint="where it comes out even"
# def steps_for(tokens, global_batch, sequence_length):
#     return tokens // (global_batch * sequence_length) + 1

# %% [markdown]
# A large model reads some hundred billion tokens. Your first job read rather less:

# %% tags=["explore"]
first = logs.read(job.log).iterations[-1]
print(f"your job: {first.iteration} steps, {first.samples} samples, {first.samples * 256:,} tokens")
print(f"300 billion tokens like that: {result(f'{steps_for(300 * 10**9, 4, 256):,} steps')}")

# %% [markdown]
# ## The workspace
#
# Your files are in the **workspace**. The shell variable `LAB_HOME` says where it is, in this notebook,
# in terminals, and inside every job.

# %% tags=["explore"]
!echo $LAB_HOME
!ls --group-directories-first

# %% [markdown]
# | folder | what is in it |
# |---|---|
# | `notebooks` | the labs. What you change is kept when the course is updated |
# | `code` | job scripts: ours, and those that you will write |
# | `data` | text to train on, made from what is on this machine |
# | `megatron/logs` | what jobs print |
# | `megatron/tensorboard`, `megatron/checkpoints` | curves, and models that were saved |
# | `images` | the drawings in the labs |
#
# A path such as `code/dp_single_node.sh` is **relative**: it begins at the folder you are in. A path
# that begins with `/` is **absolute**: it means the same file wherever you are. A job starts in the
# folder in which `sbatch` was called, so a relative path means something else when you submit from
# somewhere else. Our scripts write `$LAB_HOME/data/...` for this reason: that works from everywhere,
# and also on a colleague's machine.

# %% [markdown]
# ### Exercise 2: where is my log?
#
# A job script says in a line such as `#SBATCH --output=megatron/logs/%x_%j.txt` where the log goes.
# Slurm puts the job's name for `%x` and its number for `%j`. If that is a relative path, it begins at
# the folder in which `sbatch` was called. Write the function that gives the **absolute** path.

# %% nbgrader={"grade": false, "grade_id": "log-path", "locked": false, "schema_version": 3, "solution": true, "task": false}
def log_path(output, name, number, folder):
    """The absolute path of a job's log (a str).

    output: what #SBATCH --output= says.   name, number: of the job (a str, an int).
    folder: where sbatch was called, absolute, without a / at its end.
    """
    ### BEGIN SOLUTION
    path = output.replace("%x", name).replace("%j", str(number))
    return path if path.startswith("/") else f"{folder}/{path}"
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "log-path-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
check.function(
    log_path,
    cases=[{"output": "megatron/logs/%x_%j.txt", "name": "first", "number": 12,
            "folder": "/work/ada"},
           {"output": "%j.out", "name": "second", "number": 7, "folder": "/work/ada"},
           {"output": "/scratch/%x-%j", "name": "third", "number": 8, "folder": "/work/ada"}],
    expected=["/work/ada/megatron/logs/first_12.txt", "/work/ada/7.out", "/scratch/third-8"],
    hints={
        "That is a relative path: where does it begin?":
            ["megatron/logs/first_12.txt", "7.out", "/scratch/third-8"],
        "%x is the name and %j is the number: they have changed places.":
            ["/work/ada/megatron/logs/12_first.txt", "/work/ada/second.out", "/scratch/8-third"],
        "A path that begins with / is absolute already: nothing comes before it.":
            ["/work/ada/megatron/logs/first_12.txt", "/work/ada/7.out",
             "/work/ada//scratch/third-8"],
        "Slurm puts the job's name and number for %x and %j.":
            ["/work/ada/megatron/logs/%x_%j.txt", "/work/ada/%j.out", "/scratch/%x-%j"],
    })
### BEGIN HIDDEN TESTS
check.function(
    log_path,
    cases=check.draw(
        20, output=["%x_%j.txt", "logs/%j-%x.out", "/scratch/%x/%j", "/tmp/log", "out.%j", "%x"],
        name=["dp_two_nodes", "a", "gpt2"], number=range(1, 10**6),
        folder=["/work/grace", "/scratch/me/run 2"]),
    expected=lambda output, name, number, folder:
        ("" if output.startswith("/") else f"{folder}/")
        + output.replace("%x", name).replace("%j", str(number)))
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="log-path" hint="where does it begin?"
# def log_path(output, name, number, folder):
#     return output.replace("%x", name).replace("%j", str(number))

# %% [raw] tags=["mutant"] answer="log-path" hint="changed places"
# def log_path(output, name, number, folder):
#     path = output.replace("%x", str(number)).replace("%j", name)
#     return path if path.startswith("/") else f"{folder}/{path}"

# %% [raw] tags=["mutant"] answer="log-path" hint="nothing comes before it"
# def log_path(output, name, number, folder):
#     return f"{folder}/" + output.replace("%x", name).replace("%j", str(number))

# %% [raw] tags=["mutant"] answer="log-path" hint="Slurm puts the job's name"
# def log_path(output, name, number, folder):
#     return output if output.startswith("/") else f"{folder}/{output}"

# %% [markdown]
# Does your function find the log of your own job?

# %% tags=["explore"]
found = log_path("megatron/logs/%x_%j.txt", job.name, job.job, os.getcwd())
print(found)
!ls -l {found}

# %% [markdown]
# ## The queue
#
# On a real cluster many people wait for the same nodes. Make it crowded: the first of these jobs takes
# both nodes for itself (`--exclusive`) and does nothing for five minutes. The second one wants a node,
# too. (`--wrap` makes a script of one line.)

# %% tags=["explore"]
!sbatch --job-name=big --nodes=2 --exclusive --output=megatron/logs/%x_%j.txt --wrap "sleep 300"
!sbatch --job-name=late --exclusive --output=megatron/logs/%x_%j.txt --wrap "sleep 300"
!sleep 2
!squeue

# %% [markdown]
# The column `ST` is the job's **state**:
#
# | state | means | what to do |
# |---|---|---|
# | `PD` | pending: it waits, and the last column says what for | wait. `(Resources)`: nothing is free. `(Priority)`: others come first |
# | `R` | running, on the nodes in the last column | read its log |
# | `CG` | completing: it is over, and Slurm cleans up | wait a moment |
# | (not there) | over | `sacct` lists it; read its log |
#
# Five minutes are too long. `scancel` and a job's number end it; the option `--user` ends all of yours.

# %% tags=["explore"]
!scancel --user=$USER
!sleep 1
!squeue
!sacct --format=JobID,JobName,State,Elapsed

# %% [markdown]
# ### Exercise 3: who waits?
#
# Given what `squeue` printed, which jobs are in a given state? Return their numbers in the table's
# order.

# %% nbgrader={"grade": false, "grade_id": "jobs-in", "locked": false, "schema_version": 3, "solution": true, "task": false}
def jobs_in(state, table):
    """The numbers (a list of ints) of the jobs in `state`, such as "PD".

    table: what squeue printed, a str of several lines; the first is its head.
    """
    ### BEGIN SOLUTION
    rows = [line.split() for line in table.splitlines()[1:]]
    return [int(row[0]) for row in rows if row[4] == state]
    ### END SOLUTION

# %% tags=["check-setup"]
def squeue_table(jobs):
    """squeue's text for (number, name, state, time, nodes, where or why) in turn."""
    rows = ["             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)"]
    rows += [f"{number:18d}  slurmpar {name[:8]:>8}      ada {state:>2} {time:>10} {nodes:6d} {why}"
             for number, name, state, time, nodes, why in jobs]
    return "\n".join(rows) + "\n"

# %% nbgrader={"grade": true, "grade_id": "jobs-in-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
full = squeue_table([(11, "train", "R", "1:02:11", 2, "slurmnode[1-2]"),
                     (12, "PD_test", "R", "0:10", 1, "slurmnode3"),
                     (13, "eval", "PD", "0:00", 1, "(Resources)"),
                     (14, "RUN", "PD", "0:00", 4, "(Priority)")])
check.function(
    jobs_in,
    cases=[("PD", full), ("R", full), ("CG", full)],
    expected=[[13, 14], [11, 12], []],
    hints={
        "Other columns can hold these letters, too (a job's name, for one): look at the column ST "
        "alone.": [[12, 13, 14], [11, 12, 13, 14], []],
        "Those are all jobs, whatever their state.":
            [[11, 12, 13, 14], [11, 12, 13, 14], [11, 12, 13, 14]],
        "A job's number is an int; these are texts.": [["13", "14"], ["11", "12"], []],
        "Those are the jobs in any other state.": [[11, 12], [13, 14], [11, 12, 13, 14]],
    })
### BEGIN HIDDEN TESTS
def any_queue(source):
    """A queue drawn with a random.Random."""
    rows = []
    for number in sorted(source.sample(range(1, 9999), source.randrange(1, 9))):
        state = source.choice(["PD", "PD", "R", "R", "CG"])
        why = (f"slurmnode{source.randrange(1, 9)}" if state != "PD" else
               source.choice(["(Resources)", "(Priority)", "(Dependency)"]))
        name = source.choice(["gpt", "R", "PD_test", "RUN", "eval", "CG"])
        rows.append((number, name, state, f"{source.randrange(60)}:00", source.randrange(1, 9), why))
    return squeue_table(rows)


drawn = check.draw(20, state=["PD", "R", "CG"], table=any_queue)
check.function(
    jobs_in, cases=drawn,
    expected=[[int(line.split()[0]) for line in case["table"].splitlines()[1:]
               if line.split()[4] == case["state"]] for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="jobs-in" hint="look at the column ST"
# def jobs_in(state, table):
#     return [int(line.split()[0]) for line in table.splitlines()[1:] if state in line]

# %% [raw] tags=["mutant"] answer="jobs-in" hint="whatever their state"
# def jobs_in(state, table):
#     return [int(line.split()[0]) for line in table.splitlines()[1:]]

# %% [raw] tags=["mutant"] answer="jobs-in" hint="these are texts"
# def jobs_in(state, table):
#     rows = [line.split() for line in table.splitlines()[1:]]
#     return [row[0] for row in rows if row[4] == state]

# %% [raw] tags=["mutant"] answer="jobs-in" hint="in any other state"
# def jobs_in(state, table):
#     rows = [line.split() for line in table.splitlines()[1:]]
#     return [int(row[0]) for row in rows if row[4] != state]

# %% [markdown]
# ### Exercise 4: how long is 2:00?
#
# Every job has a time limit, and Slurm ends it when that is over. So a limit that is too short costs
# you the training. One that is too long makes you wait: short jobs slip into gaps between long ones.
# People often read the limit's spelling wrongly. These are all there are:
#
# | `--time=` | means |
# |---|---|
# | `90` | 90 **minutes** |
# | `2:30` | 2 minutes and 30 seconds |
# | `2:30:00` | 2 hours and 30 minutes |
# | `1-12` | 1 day and 12 **hours** |
# | `1-12:30` | 1 day, 12 hours and 30 minutes |
# | `1-12:30:00` | the same, with seconds |
#
# Write the function that gives the seconds. (Slurm then rounds up to whole minutes; you need not.)

# %% nbgrader={"grade": false, "grade_id": "limit-seconds", "locked": false, "schema_version": 3, "solution": true, "task": false}
def limit_seconds(text):
    """The seconds (an int) of a time limit as Slurm reads it."""
    ### BEGIN SOLUTION
    days, dash, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if dash or len(parts) == 3:
        hours, minutes, seconds = parts + [0] * (3 - len(parts))
    else:
        hours, minutes, seconds = 0, parts[0], (parts[1:] or [0])[0]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "limit-seconds-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    limit_seconds,
    cases=[("20",), ("2:30",), ("01:00:00",), ("1-12",), ("2-00:30",), ("1-12:30:15",)],
    expected=[1200, 150, 3600, 129_600, 174_600, 131_415],
    hints={
        "A number alone means minutes, not seconds.":
            [20, 150, 3600, 129_600, 174_600, 131_415],
        "Two numbers are minutes and seconds: to Slurm, 2:30 is short.":
            [1200, 9000, 3600, 129_600, 174_600, 131_415],
        "After a dash hours come first: 1-12 is a day and twelve hours.":
            [1200, 150, 3600, 87_120, 172_830, 131_415],
        "What stands before the dash are days.": [1200, 150, 3600, 43_200, 1800, 45_015],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(12, d=range(1, 15), h=range(24), m=range(60), s=range(60))
check.function(
    limit_seconds,
    cases=[(text.format(**case),) for case in drawn for text in (
        "{m}", "{m}:{s:02d}", "{h}:{m:02d}:{s:02d}", "{d}-{h}", "{d}-{h:02d}:{m:02d}",
        "{d}-{h:02d}:{m:02d}:{s:02d}")],
    expected=[60 * (60 * (24 * one["d"] * d + one["h"] * h) + one["m"] * m) + one["s"] * s
              for one in drawn for d, h, m, s in (
        (0, 0, 1, 0), (0, 0, 1, 1), (0, 1, 1, 1), (1, 1, 0, 0), (1, 1, 1, 0), (1, 1, 1, 1))])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="limit-seconds" hint="minutes, not seconds"
# -        hours, minutes, seconds = 0, parts[0], (parts[1:] or [0])[0]
# +        hours, minutes, seconds = [0] * (3 - len(parts)) + parts

# %% [raw] tags=["mutant"] answer="limit-seconds" hint="2:30 is short"
# -        hours, minutes, seconds = 0, parts[0], (parts[1:] or [0])[0]
# +        hours, minutes, seconds = (0, parts[0], 0) if len(parts) == 1 else (*parts, 0)

# %% [raw] tags=["mutant"] answer="limit-seconds" hint="After a dash hours come first"
# -    if dash or len(parts) == 3:
# +    if len(parts) == 3:

# %% [raw] tags=["mutant"] answer="limit-seconds" hint="before the dash are days"
# -    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
# +    return (hours * 60 + minutes) * 60 + seconds

# %% [markdown]
# ## What a training says
#
# Start a longer job, and look at it while it runs.

# %% tags=["explore"]
!sbatch code/dp_single_node.sh --train-iters 2000 --log-interval 2 --global-batch-size 4

# %% tags=["explore"] short={"range(90)": "range(500)"}
import time

watched = jobs.show()
for _ in range(90):  # until it has something to say, a minute at most
    if watched.log.is_file() and "elapsed time" in watched.log.read_text():
        break
    time.sleep(0.6)
for one in logs.lines(watched.log, "elapsed time")[-2:]:
    print(mark(one, r"iteration +\d+/ *\d+", r"iteration \(ms\): [^ |]+", "lm loss: [^ |]+"))

# %% [markdown]
# Each of these long lines (they may wrap) is about one moment of the training. From left to right: the
# step and how many there will be, the samples that were read so far, the mean **time of one step** in
# milliseconds, the learning rate, the global batch, the loss, and four more that you will meet later.
# The three that people look at first are in color.
#
# `lab top` shows the same for all ranks. A **rank** is one process of the training; this job has two,
# and each trains on samples of its own. In a terminal (*File*, *New*, *Terminal*) `lab top` goes on
# until <kbd>Ctrl</kbd>+<kbd>C</kbd>; with `--once` it looks once.

# %% tags=["explore"]
!lab top --once

# %% [markdown]
# ### Exercise 5: how much longer?
#
# Read from such a line how many seconds the training still needs, if it goes on at this pace.

# %% nbgrader={"grade": false, "grade_id": "seconds-left", "locked": false, "schema_version": 3, "solution": true, "task": false}
line = (" iteration      200/     800 | consumed samples:        12800 | elapsed time per iteration "
        "(ms): 512.0 | learning rate: 6.000E-05 | global batch size:    64 | lm loss: 6.114205E+00 | "
        "loss scale: 1.0 | grad norm: 0.873 | number of skipped iterations:   0 | "
        "number of nan iterations:   0 |")

def seconds_left(line):
    """Seconds (a float) that a training still needs, from a line of its log."""
    ### BEGIN SOLUTION
    before, after = line.split("|")[0].removeprefix(" iteration").split("/")
    milliseconds = float(line.split("(ms):")[1].split("|")[0])
    return (int(after) - int(before)) * milliseconds / 1000
    ### END SOLUTION

# %% tags=["check-setup"]
def iteration_line(iteration, last, milliseconds, batch=64):
    """A log's line, as the trainer prints it."""
    return (f" iteration {iteration:8d}/{last:8d} | consumed samples: {iteration * batch:12d} | "
            f"elapsed time per iteration (ms): {milliseconds:.1f} | learning rate: 1.500E-04 | "
            f"global batch size: {batch:5d} | lm loss: 5.114205E+00 | loss scale: 1.0 | "
            "grad norm: 1.107 | number of skipped iterations:   0 | "
            "number of nan iterations:   0 |")

# %% nbgrader={"grade": true, "grade_id": "seconds-left-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
check.function(
    seconds_left, rel=1e-3,
    cases=[(iteration_line(200, 800, 512.0),), (iteration_line(90, 100, 1640.5),),
           (iteration_line(50, 50, 90.0),)],
    expected=[307.2, 16.405, 0.0],
    hints={
        "That is the time of the whole training; a part of it is over.": [409.6, 164.05, 4.5],
        "That is the time that is over; how many steps are still to come?": [102.4, 147.645, 4.5],
        "Those are milliseconds.": [307_200.0, 16_405.0, 0.0],
        "Those are steps; how long does each of them take?": [600, 10, 0],
    })
### BEGIN HIDDEN TESTS
drawn = check.draw(20, iteration=range(1, 10_000), more=range(1, 10_000), batch=[8, 48, 512],
                   milliseconds=check.between(3.0, 9000.0, digits=1))
check.function(
    seconds_left, rel=1e-3,
    cases=[(iteration_line(case["iteration"], case["iteration"] + case["more"],
                           case["milliseconds"], case["batch"]),) for case in drawn],
    expected=[case["more"] * case["milliseconds"] / 1000 for case in drawn])
### END HIDDEN TESTS

# %% [raw] tags=["mutant"] answer="seconds-left" hint="the time of the whole training"
# -    return (int(after) - int(before)) * milliseconds / 1000
# +    return int(after) * milliseconds / 1000

# %% [raw] tags=["mutant"] answer="seconds-left" hint="the time that is over"
# -    return (int(after) - int(before)) * milliseconds / 1000
# +    return int(before) * milliseconds / 1000

# %% [raw] tags=["mutant"] answer="seconds-left" hint="Those are milliseconds"
# -    return (int(after) - int(before)) * milliseconds / 1000
# +    return (int(after) - int(before)) * milliseconds

# %% [raw] tags=["mutant"] answer="seconds-left" hint="Those are steps"
# -    return (int(after) - int(before)) * milliseconds / 1000
# +    return float(int(after) - int(before))

# %% [markdown]
# And your own job? If the answer is longer than you care to wait, stop it: a training can be stopped
# at any time.

# %% tags=["explore"]
now = logs.lines(watched.log, "elapsed time")[-1]
print(f"it would go on for {result(f'{seconds_left(now):,.0f} s')}")
!scancel {watched.job}

# %% [markdown]
# ### TensorBoard
#
# The figures in the log are also drawn while a job runs. The link opens TensorBoard in another tab
# (the first time it needs a few seconds). Look for `lm loss`: your two jobs wrote into the same
# folder, so the curves lie over each other.

# %% tags=["explore"]
tensorboard.link()

# %% [markdown]
# ## A job that fails
#
# > **Watch out: the next job is meant to fail.** You will see many that fail without your asking for
# > it, so it is good to have seen one in peace. Can you see what is wrong with it before you run it?

# %% tags=["explore"]
!sbatch code/dp_single_node.sh --train-itters 20

# %% tags=["explore"]
broken = jobs.wait()

# %% [markdown]
# Read such an end from the bottom to the top, and it is a puzzle: all that the last lines know is that
# somebody ended somebody. The cause comes **first**. `lab top` looks for it in the log:

# %% tags=["explore"]
!lab top --once {broken.job}

# %% [markdown]
# The trainer does not know that flag, and it names the one that was meant. `lab report` and the job's
# number make a page about a job, with its script, its curves, its ranks and the first error. You find
# it in `megatron/reports`, in the list of files on the left.

# %% tags=["explore"]
!lab report {broken.job}

# %% [markdown]
# ## A script of your own
#
# ### Exercise 6: fill in the form
#
# A job script is a shell script with a form on top. In its lines, which begin with `#SBATCH`, you ask
# Slurm for what the job needs; the shell takes them for comments. Write a script that trains the small
# GPT for 25 steps. The head and the model are there. Yours are
#
# 1. the form: the name `my_first`, **one** node, **one** task on it (`--ntasks-per-node`), **4** CPUs
#    for the task, a time limit of **10 minutes**, and the log in `megatron/logs` under the job's name
#    and number;
# 2. `DATA`: where the text is, in the folder `data/bpe-4096` of the workspace, so that it is found
#    from wherever the script is submitted;
# 3. `BATCH`: `--micro-batch-size 2` (samples that a rank works on at a time), a global batch that
#    gives each of the **two** ranks just one micro-batch per step, 25 steps, and a line in the log for
#    each.
#
# `srun` starts the task on the job's node, and `torchrun` starts the two ranks there. Have a look at
# `code/dp_single_node.sh` if you want an example. The check does not read your text: it finds out what
# the script would do.

# %% nbgrader={"grade": false, "grade_id": "my-first", "locked": false, "schema_version": 3, "solution": true, "task": false}
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
MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
       --seq-length 256 --max-position-embeddings 256"
OPTIMIZER="--lr 1e-3 --min-lr 1e-4 --lr-decay-style cosine --lr-warmup-fraction 0.05"
### BEGIN SOLUTION
DATA=$LAB_HOME/data/bpe-4096
BATCH="--micro-batch-size 2 --global-batch-size 4 --train-iters 25 --log-interval 1"
### END SOLUTION
TEXT="--data-path $DATA/text_document --vocab-file $DATA/vocab.json \
      --merge-file $DATA/merges.txt --split 949,50,1"
OUTPUT="--eval-iters 0 --tensorboard-dir $LAB_HOME/megatron/tensorboard/my_first"

srun torchrun --standalone --nproc_per_node 2 \
    "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" \
    --device cpu $MODEL $OPTIMIZER $BATCH $TEXT $OUTPUT

# %% nbgrader={"grade": true, "grade_id": "my-first-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
script = check.script("code/my_first.sh", only=[
    "--micro-batch-size", "--global-batch-size", "--train-iters",
    "--data-path", "--vocab-file", "--merge-file"])
form = script.directives
asked = {"job-name": "my_first", "nodes": "1", "ntasks-per-node": "1", "cpus-per-task": "4"}
wrong = [f"--{name} is {form.get(name, 'missing')}, asked for is {value}."
         for name, value in asked.items() if form.get(name) != value]
check.that(not wrong, "The form says something else. " + " ".join(wrong))
check.that(form.get("time") in ("10", "10:00", "0:10:00", "00:10:00", "0-00:10", "0-00:10:00"),
           "The time limit is not 10 minutes: look at the table in exercise 4 again.")
output = form.get("output", "").replace("%x", "my_first")
check.that(output.startswith("megatron/logs/") and "my_first" in output and "%j" in output,
           "The log is to go to megatron/logs, under the job's name (%x) and number (%j).")
flags = script.flags
folders = {path.rpartition("/")[0] for path in (flags.data_path, flags.vocab_file, flags.merge_file)}
check.that(all(folder.startswith(("$LAB_HOME", "/")) for folder in folders),
           "DATA is a relative path: from another folder nobody would find it. Begin at $LAB_HOME.")
check.that(folders == {"$LAB_HOME/data/bpe-4096"},
           "DATA leads somewhere else: the text is in data/bpe-4096 of the workspace, which begins at "
           "$LAB_HOME on every machine.")
check.that(flags.global_batch_size == flags.micro_batch_size * script.world_size,
           "With this global batch each rank has more than one micro-batch per step.")
check.that((flags.micro_batch_size, flags.train_iters, flags.log_interval) == (2, 25, 1),
           "BATCH is not as asked: --micro-batch-size, --train-iters or --log-interval.")

# %% [raw] tags=["mutant"] answer="my-first" hint="limit is not 10 minutes"
# -#SBATCH --time=00:10:00
# +#SBATCH --time=00:10

# %% [raw] tags=["mutant"] answer="my-first" hint="This would go wrong"
# -#SBATCH --cpus-per-task=4
# +# SBATCH --cpus-per-task=4

# %% [raw] tags=["mutant"] answer="my-first" hint="The form says something else"
# -#SBATCH --ntasks-per-node=1

# %% [raw] tags=["mutant"] answer="my-first" hint="under the job's name (%x)"
# -#SBATCH --output=megatron/logs/%x_%j.txt
# +#SBATCH --output=megatron/logs/log.txt

# %% [raw] tags=["mutant"] answer="my-first" hint="is a relative path"
# -DATA=$LAB_HOME/data/bpe-4096
# +DATA=data/bpe-4096

# %% [raw] tags=["mutant"] answer="my-first" hint="leads somewhere else"
# -DATA=$LAB_HOME/data/bpe-4096
# +DATA=/work/ada/data/bpe-4096

# %% [raw] tags=["mutant"] answer="my-first" hint="unbound variable"
# -DATA=$LAB_HOME/data/bpe-4096
# +DATA=$LABHOME/data/bpe-4096

# %% [raw] tags=["mutant"] answer="my-first" hint="more than one micro-batch"
# -BATCH="--micro-batch-size 2 --global-batch-size 4 --train-iters 25 --log-interval 1"
# +BATCH="--micro-batch-size 2 --global-batch-size 8 --train-iters 25 --log-interval 1"

# %% [raw] tags=["mutant"] answer="my-first" hint="BATCH is not as asked"
# -BATCH="--micro-batch-size 2 --global-batch-size 4 --train-iters 25 --log-interval 1"
# +BATCH="--micro-batch-size 2 --global-batch-size 4 --train-iters 20 --log-interval 1"

# %% [raw] tags=["mutant"] answer="my-first" hint="nodes x ranks per node: 1 x 1; the exercise uses 1 x 2"
# -srun torchrun --standalone --nproc_per_node 2 \
# +srun torchrun --standalone --nproc_per_node 1 \
# -BATCH="--micro-batch-size 2 --global-batch-size 4 --train-iters 25 --log-interval 1"
# +BATCH="--micro-batch-size 2 --global-batch-size 2 --train-iters 25 --log-interval 1"

# %% [raw] tags=["mutant"] answer="my-first" hint="--ffn-hidden-size 1; the exercise uses 1024"
# -MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 \
# +MODEL="--num-layers 4 --hidden-size 256 --num-attention-heads 8 --ffn-hidden-size 1 --kv-channels 1 \

# %% [markdown]
# Does it run? Your first job printed how long a step takes on your machine. How many seconds will the
# 25 steps take?

# %% nbgrader={"grade": false, "grade_id": "guess-training", "locked": false, "schema_version": 3, "solution": true, "task": false}
### BEGIN SOLUTION
guess_training = 10
### END SOLUTION

# %% tags=["explore"] short={"sbatch code/my_first.sh": "sed 's/iters 25/iters 4/' code/my_first.sh | sbatch"}
!sbatch code/my_first.sh

# %% tags=["explore"]
mine = jobs.wait()

# %% tags=["explore"]
steps = logs.read(mine.log).iterations
check.compare("seconds of 25 steps", guess_training,
              sum(step.milliseconds for step in steps) / 1000)
print(f"from the job's start to its end: {result(f'{mine.seconds} s')}")
plots.loss(my_first=logs.read(mine.log))

# %% [markdown]
# The rest of the time went into starting Python and PyTorch on the node, and into opening the text.
# In a training of weeks that is nothing; in a short test it is often most of the time.

# %% [markdown]
# ## Discuss
#
# 1. **Why a queue?** You could log in to a node and start the training there. What would go wrong when
#    ten people do so?
# 2. **The time limit.** Your training needs between 3 and 5 hours. Which limit do you ask for, and what
#    can the training itself do so that a limit that is too short costs little?
# 3. **First, not last.** Why are the last lines of the log of a failed job so often of no use, when
#    many ranks train together?

# %% [markdown]
# ## Clean up
#
# Nothing of yours should go on running, and saved models are large: delete those that you do not need.
# Logs and curves are small and may stay.

# %% tags=["explore"]
!scancel --user=$USER
!du -sh megatron/checkpoints megatron/tensorboard megatron/logs
!rm -rf megatron/checkpoints/dp_single_node
!squeue

# %% [markdown]
# ## Summary
#
# - `sbatch` puts a script into the queue and returns at once; `squeue` shows the queue, `scancel` ends
#   a job, `sacct` lists those that are over, `sinfo` shows the nodes.
# - The form on top of a script (`#SBATCH`) says what the job needs. `--time=2:00` are two minutes.
# - Paths that begin at `$LAB_HOME` work from everywhere. `%x_%j` in `--output` keeps the logs of all
#   jobs apart.
# - The time of a step and the number of steps say how long a training goes on.
# - When a job fails, look for the **first** error. `lab top` and `lab report` find it.
#
# **To hand in:** save this notebook (<kbd>Ctrl</kbd>+<kbd>S</kbd>); this file is what is graded. Your
# script is in it. Before you hand in, *Run*, *Restart Kernel and Run All Cells* shows whether all
# checks pass from top to bottom. (The job that is meant to fail does not stop it.)
#
# **The way on:** in [the next lab](01_cluster_and_hardware.ipynb) you look at what the cluster is made
# of, and how fast it can be.
