"""Slurm scripts on the real cluster: those we ship, and one of the classic course's form."""

import os
import re
import time
from pathlib import Path

import pytest

from job_monitor import metrics
from labcore import workspace

pytestmark = pytest.mark.cluster

DOCS = workspace.CODE.parent / "docs"
CLASSIC = Path(__file__).with_name("classic.sh")
SHIPPED = sorted(script for script in (workspace.CODE / "jobs").glob("*.sh")
                 if "pretrain_gpt.py" in script.read_text()
                 and not script.stem.startswith("case_"))  # lab 03's get their flags from it
VIRTUAL = [script for script in SHIPPED if "--device virtual" in script.read_text()]
REAL = [script for script in SHIPPED if script not in VIRTUAL]
TINY = "--hidden-size 32 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
LOSS_SCALE = "--train-iters 12 --log-interval 4"  # until fp16.sh has found its loss scale
MORE = {"fp16": LOSS_SCALE, "gpt2_small": "--num-layers 2", "virtual_v100": "--num-layers 2"}
SHORT = TINY + "--train-iters 3 --log-interval 1 --eval-iters 1 --save-interval 3 --lr 1e-2"


@pytest.fixture
def lab(course):
    return course


def submit(lab, command, seconds=170):
    """Run an sbatch command; returns (job number, final state) when the job has ended."""
    done = lab.run(command)
    assert done.returncode == 0, done.stderr
    number = re.search(r"Submitted batch job (\d+)", done.stdout).group(1)
    return number, ends(lab, [number], "State,ExitCode", seconds)


def ends(lab, numbers, fields, seconds=170):
    """Wait for jobs to end, and return these fields of Slurm's accounting, a line per job.

    `squeue` costs an eighth of the CPU time that `sacct` does, so it is what to ask repeatedly.

    Args:
        lab: the cluster.
        numbers: the jobs' numbers.
        fields: what `sacct -o` takes.
        seconds: how long to wait.
    """
    jobs = ",".join(numbers)
    assert lab.until(lambda: not lab.run(f"squeue -h -j {jobs}").stdout.strip(), seconds)
    query = f"sacct -n -X -P -j {jobs} -o {fields}"
    assert lab.until(lambda: not re.search("RUNNING|PENDING", lab.run(query).stdout), 10)
    return lab.run(query).stdout.strip()


def losses(log):
    return [float(loss) for loss in re.findall(r"^ iteration .* lm loss: (\S+) \|", log, re.M)]


@pytest.fixture(scope="module")
def ended(course, warm):
    """{script: (job number, its sacct states)} of all shipped scripts, submitted at once."""
    numbers = {}
    for script in SHIPPED:
        more = MORE.get(script.stem, "")
        done = course.run(f"sbatch --parsable code/{script.name} {SHORT} {more}")
        assert done.returncode == 0, done.stderr
        numbers[script.stem] = done.stdout.strip()
    assert course.until(lambda: not course.run("squeue -h").stdout.strip(), 240)
    states = course.run("sacct -n -X -P -o JobID,State,ExitCode").stdout.splitlines()
    state = dict(line.split("|", 1) for line in states)
    return {name: (number, state[number]) for name, number in numbers.items()}


@pytest.mark.parametrize("script", REAL, ids=lambda path: path.stem)
def test_a_shipped_script_trains(course, ended, script):
    number, state = ended[script.stem]
    log = (course.home / f"megatron/logs/{script.stem}_{number}.txt").read_text()
    assert state == "COMPLETED|0:0", log[-3000:]
    text, sizes = re.sub(r"(?m)^#(?!SBATCH).*", "", script.read_text()), {}
    for axis in ("tensor", "pipeline"):
        match = re.search(rf"--{axis}-model-parallel-size (\d)", text)
        sizes[axis] = int(match[1]) if match else 1
    ranks = 4 if "#SBATCH --nodes=2" in text else 2
    replicas = ranks // (sizes["tensor"] * sizes["pipeline"])
    assert (f"using world size: {ranks}, data-parallel-size: {replicas}, tensor-model-parallel "
            f"size: {sizes['tensor']}, pipeline-model-parallel size: {sizes['pipeline']}") in log
    loss = losses(log)
    assert len(loss) == 3 and loss[2] < loss[0]
    recorded = metrics.read_for_log(log.splitlines())  # each log names its own job's metrics
    assert [one["lm_loss"] for one in recorded if one["kind"] == "iteration"] == pytest.approx(
        loss, rel=1e-6)
    assert {one.get("slurm_job_id", number) for one in recorded} == {number}
    last = 12 if script.stem == "fp16" else 3
    saved = course.home / f"megatron/checkpoints/{script.stem}/iter_{last:07d}"
    assert len(list(saved.glob("mp_rank_*"))) == sizes["tensor"] * sizes["pipeline"]
    assert list((course.home / f"megatron/tensorboard/{script.stem}").glob("events.out.*"))


@pytest.mark.parametrize("script", VIRTUAL, ids=lambda path: path.stem)
def test_a_shipped_script_runs_on_the_cards_that_the_nodes_declare(course, ended, script):
    number, state = ended[script.stem]
    log = (course.home / f"megatron/logs/{script.stem}_{number}.txt").read_text()
    assert state == "COMPLETED|0:0", log[-3000:]
    assert "using virtual v100-sxm2-16gb (Tesla V100-SXM2-16GB, " in log
    ranks = "0,1,2,3" if "#SBATCH --nodes=2" in script.read_text() else "0,1"
    assert f" on rank(s) {ranks}" in log
    lines = re.findall(r"^ iteration .*", log, re.M)
    assert len(lines) == 3 and all(line.endswith("| virtual v100-sxm2-16gb |") for line in lines)
    assert losses(log) == [] and "grad norm" not in log
    assert list((course.home / f"megatron/tensorboard/{script.stem}").glob("events.out.*"))


def test_jobs_that_need_all_gpus_run_one_after_another(course, warm):
    """Each requests both GPUs of both nodes, so the second one waits for the first."""
    numbers = [course.run(f"sbatch --parsable code/virtual_v100.sh {TINY} --num-layers 1 "
                          "--train-iters 1").stdout.strip() for _ in range(2)]
    shown = ends(course, numbers, "State,Start,End")
    assert shown.count("COMPLETED") == 2, shown
    (_, _, ended), (_, began, _) = (line.split("|") for line in shown.splitlines())
    assert ended <= began


# The test's vocabulary is small: padding brings it to GPT-2's.
FULL_SIZE = ("--virtual-network ethernet:25gbit --train-iters 2 --log-interval 1 "
             "--make-vocab-size-divisible-by 50304")


def run_virtual_v100(course, flags, state):
    """Run virtual_v100.sh at full size, and return its log.

    Args:
        course: the cluster.
        flags: more flags of the trainer.
        state: what the job's state has to start with.
    """
    number, ended = submit(course, f"sbatch code/virtual_v100.sh {FULL_SIZE} {flags}")
    log = (course.home / f"megatron/logs/virtual_v100_{number}.txt").read_text()
    assert ended.startswith(state), log[-3000:]
    return log


def milliseconds_and_share(log):
    """Return the milliseconds of every iteration, as printed, and the all-reduce's share."""
    (milliseconds,) = {*re.findall(r"elapsed time per iteration \(ms\): (\S+) ", log)}
    (reduce,) = {*re.findall(r"backward-params-all-reduce: (\S+) ", log)}
    return milliseconds, float(reduce) / float(milliseconds)


def test_the_documentation_shows_virtual_v100_as_shipped(course, warm):
    """GPT-2 small with its 12 heads, and a batch that does not fit."""
    page = (DOCS / "virtual-gpus.md").read_text()
    log = run_virtual_v100(course, "", "COMPLETED|0:0")
    milliseconds, _ = milliseconds_and_share(log)
    assert f"elapsed time per iteration (ms): {milliseconds} |" in page
    log = run_virtual_v100(course, "--micro-batch-size 32", "FAILED")
    errors = re.findall(r"RuntimeError: CUDA out of memory\. .* allocated; ", log)
    assert any(error in page for error in errors), errors


def test_the_classic_courses_job_with_32_heads_and_a_batch_that_does_not_fit(course, warm):
    """About 0.54 s, half of it communication, 10 GB, as that course measured."""
    log = run_virtual_v100(course, "--num-attention-heads 32", "COMPLETED|0:0")
    milliseconds, share = milliseconds_and_share(log)
    assert 500 < float(milliseconds) < 580 and 0.4 < share < 0.6
    (peak,) = re.findall(r"^\[Rank 0\].* max allocated: (\S+) ", log, re.M)
    assert 9_500 < float(peak) < 10_800
    log = run_virtual_v100(course, "--num-attention-heads 32 --micro-batch-size 32", "FAILED")
    # The scores are 32 x 32 x 1,024 x 1,024 numbers of 4 bytes.
    assert re.search(r"RuntimeError: CUDA out of memory\. Tried to allocate 4\.00 GiB "
                     r"\(GPU 0; 15\.78 GiB total capacity; .* already allocated; .* free; "
                     r".* reserved in total by PyTorch\)", log), log[-3000:]


def test_half_precision_finds_its_loss_scale(course, ended):
    """fp16.sh starts too high: steps overflow, are skipped, and halve the scale."""
    log = (course.home / f"megatron/logs/fp16_{ended['fp16'][0]}.txt").read_text()
    lines = re.findall(r"loss scale: (\S+) .* skipped iterations: +(\d+) ", log)
    skipped = [int(count) for _, count in lines]
    assert len(lines) == 3 and skipped[0] > 0
    assert [float(scale) for scale, _ in lines] == [
        2**20 / 2**sum(skipped[:at + 1]) for at in range(3)]


@pytest.mark.stress
def test_the_time_limit_saves_and_so_does_sigterm_and_the_job_resumes_itself(course):
    """resume.sh with a limit of a minute: signal, save, requeue, resume; then by scancel's hand."""
    flags = TINY + "--train-iters 1000000 --log-interval 1 --eval-iters 0 --save-interval 1000000"
    number = course.run("sbatch --parsable --job-name=limited --time=1 --signal=TERM@30 "
                        f"code/resume.sh {flags}").stdout.strip()
    log = course.home / f"megatron/logs/limited_{number}.txt"
    tracker = course.home / "megatron/checkpoints/limited/latest_checkpointed_iteration.txt"

    def waits_again(seconds):
        """Until the job has queued itself; returns the log and the iteration saved."""
        query = f"squeue -h -j {number} -t PENDING -o %r"
        assert course.until(lambda: "BeginTime" in course.run(query).stdout, seconds), (
            log.read_text()[-3000:])
        return log.read_text(), int(tracker.read_text())

    first, saved = waits_again(100)
    assert "[exiting program after receiving SIGTERM.]" in first
    assert saved == len(losses(first)) > 0
    # Slurm lets a requeued job wait for two minutes, and may signal a short one at its start.
    time.sleep(1)  # a node refuses to start a job in the second in which it killed it
    assert course.run(f"scontrol update JobId={number} TimeLimit=10 StartTime=now").returncode == 0
    assert course.until(lambda: f"iteration {saved + 2:8d}/" in log.read_text(), 60)
    assert course.run(f"scancel --signal=TERM {number}").returncode == 0
    both, again = waits_again(60)
    second = both[len(first):]
    assert f"successfully loaded checkpoint from {tracker.parent} at iteration {saved}" in second
    assert "[exiting program after receiving SIGTERM.]" in second
    assert again == saved + len(losses(second))
    assert course.run(f"scancel {number}").returncode == 0
    assert course.until(lambda: not course.run(f"squeue -h -j {number}").stdout.strip(), 20)


def test_shipped_scripts_name_their_device_and_come_with_the_workspace(lab):
    assert len(SHIPPED) >= 10
    for script in SHIPPED:
        assert "--device " in script.read_text()
        assert os.access(lab.home / "code" / script.name, os.X_OK)


def test_a_script_of_the_classic_course_runs_unchanged(lab, warm):
    """/dli paths, no partition, no gres, 32 CPUs per task, port 6000, TERM unset."""
    script = lab.home / "code" / "classic.sh"
    script.write_bytes(CLASSIC.read_bytes())
    number, state = submit(lab, "unset TERM; sbatch code/classic.sh")
    logs = lab.home / "megatron/logs"
    log = (logs / f"{number}.out").read_text()
    assert state == "COMPLETED|0:0", log[-3000:] + (logs / f"{number}.err").read_text()[-3000:]
    assert (logs / "log_2_nodes.txt").read_text() in log
    assert "using world size: 4, data-parallel-size: 4" in log
    # It asks for nccl, and the nodes declare virtual cards.
    assert "using virtual v100-sxm2-16gb " in log and losses(log) == []
    assert len(re.findall(r"^ iteration .*virtual v100-sxm2-16gb \|$", log, re.M)) == 3
    assert "no checkpoint is saved at iteration 6: " in log
