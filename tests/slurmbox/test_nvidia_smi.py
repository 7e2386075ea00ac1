"""`nvidia-smi` on the login node and inside jobs, while virtual GPUs are at work."""

import json
import os
import re

import pytest

pytestmark = pytest.mark.cluster

# One GPU; it looks at its own card, and ends when the test says so.
JOB = r"""#!/bin/bash
#SBATCH --gpus-per-node=1 --nodelist=slurmnode1 --output=watched_%j.txt
DATA=$LAB_HOME/data/GPT-2_assets
python "$LAB_HOME/megatron/Megatron-LM/pretrain_gpt.py" --device virtual \
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 \
    --max-position-embeddings 64 --micro-batch-size 2 --train-iters 1000000 --log-interval 100 \
    --eval-iters 0 --lr 1e-3 --data-path "$DATA/my-gpt2_text_document" \
    --vocab-file "$DATA/gpt2-vocab.json" --merge-file "$DATA/gpt2-merges.txt" &
until grep -qs '"training"' "$RANK_STATUS/0.json"; do sleep 0.2; done
out=watched_$SLURM_JOB_ID
nvidia-smi -L > "$out.list"
nvidia-smi > "$out.table"
timeout 2.5 nvidia-smi -l 1 --format=csv -f "$out.csv" --query-gpu=timestamp,temperature.gpu,\
utilization.gpu,utilization.memory,memory.used,memory.free
echo "$?" > "$out.code"
until [ -e "stop" ]; do sleep 0.2; done
kill %1
"""


@pytest.fixture(scope="module")
def watched(course, warm):
    """Two jobs that share a node, each with one of its cards; what the login node saw of them."""
    for name in ("stop", "job.sh"):
        (course.home / name).unlink(missing_ok=True)
    (course.home / "job.sh").write_text(JOB)
    jobs = [course.run("sbatch --parsable job.sh").stdout.strip() for _ in range(2)]
    ends = [course.home / f"watched_{job}.code" for job in jobs]
    try:
        assert course.until(lambda: all(end.exists() for end in ends), 200), [
            (course.home / f"watched_{job}.txt").read_text()[-2000:] for job in jobs]
        seen = {name: course.run(command) for name, command in (
            ("table", "nvidia-smi"),
            ("apps", "nvidia-smi --query-compute-apps=node,pid,gpu_bus_id,used_memory "
                     "--format=csv,noheader,nounits"),
            ("csv", "nvidia-smi --query-gpu=node,index,memory.used,utilization.gpu "
                    "--format=csv,noheader,nounits"))}
    finally:
        (course.home / "stop").touch()
        course.until(lambda: not course.run("squeue -h").stdout.strip(), 60)
    return course, jobs, seen


def rank(course, job):
    return json.loads((course.layout.ranks / job / "0.json").read_text())


def test_the_login_node_shows_both_jobs_on_their_cards(watched):
    course, jobs, seen = watched
    assert seen["apps"].returncode == 0, seen["apps"].stderr
    processes = [line.split(", ") for line in seen["apps"].stdout.splitlines()]
    numbers = {rank(course, job)["slot"]: rank(course, job) for job in jobs}
    assert [*sorted(numbers)] == [0, 1]
    assert processes == [
        ["slurmnode1", str(numbers[number]["pid"]), f"00000000:{0x1B + number:X}:00.0",
         str(numbers[number]["memory_used"] // 2**20)] for number in (0, 1)]
    rows = [line.split(", ") for line in seen["csv"].stdout.splitlines()]
    assert [row[:2] for row in rows] == [
        [f"slurmnode{node}", index] for node in (1, 2) for index in "01"]
    assert all(int(row[2]) > 300 and 1 <= int(row[3]) <= 100 for row in rows[:2])
    assert all(row[2:] == ["0", "0"] for row in rows[2:])


def test_the_login_node_s_table_says_whose_cards_these_are(watched):
    shown = watched[2]["table"].stdout
    nodes = re.findall(r"   (\w+) \(virtual GPUs: modeled, no hardware\)$", shown, re.M)
    assert nodes == ["slurmnode1", "slurmnode2"]
    assert shown.count("  C   python  ") == 2 and shown.count("No running processes found") == 1


def test_a_job_sees_its_own_card_alone(watched):
    course, jobs, _ = watched
    lists = [(course.home / f"watched_{job}.list").read_text() for job in jobs]
    for job, listed in zip(jobs, lists, strict=True):
        assert re.fullmatch(r"GPU 0: Tesla V100-SXM2-16GB \(virtual\) \(UUID: GPU-\S+\)\n", listed)
        table = (course.home / f"watched_{job}.table").read_text()
        assert re.findall(r"^\|    (\d)   N/A  N/A +(\d+)      C   python", table, re.M) == [
            ("0", str(rank(course, job)["pid"]))]
    assert lists[0] != lists[1]


def test_a_job_writes_a_log_of_its_card(watched):
    course, jobs, _ = watched
    for job in jobs:
        assert (course.home / f"watched_{job}.code").read_text() == "124\n"  # of timeout
        header, *rows = (course.home / f"watched_{job}.csv").read_text().splitlines()
        assert header == ("timestamp, temperature.gpu, utilization.gpu [%], utilization.memory [%],"
                          " memory.used [MiB], memory.free [MiB]")
        assert len(rows) >= 2
        for row in rows:
            match = re.fullmatch(r"[\d/]+ [\d:.]+, \[N/A\], (\d+) %, \[N/A\], (\d+) MiB, (\d+) MiB",
                                 row)
            assert int(match[1]) > 0 and int(match[2]) + int(match[3]) == 16160


def test_what_has_ended_is_gone(watched):
    course, _, _ = watched
    done = course.run("nvidia-smi --query-compute-apps=pid --format=csv,noheader")
    assert (done.returncode, done.stdout) == (0, "")


def test_a_real_one_is_not_hidden(cluster, tmp_path):
    real = tmp_path / "nvidia-smi"
    real.write_text('#!/bin/sh\necho "real $*"\n')
    real.chmod(0o755)
    path = cluster.run("echo $PATH").stdout.strip()
    for order in (f"{tmp_path}:{path}", f"{path}:{tmp_path}"):
        assert cluster.run("nvidia-smi -L", PATH=order).stdout == "real -L\n"
        # A job brings the PATH along; what the course puts first there must let it through.
        done = cluster.run("srun nvidia-smi -L", PATH=order)
        assert done.stdout == "real -L\n", done.stderr


def test_loopback_mode(make_cluster):
    small = make_cluster(mode="loopback", nodes=1)
    assert small.run("nvidia-smi -L").stdout.count("(virtual)") == 2
    assert small.run("srun --gpus=1 nvidia-smi -L").stdout.count("(virtual)") == 1


def test_it_needs_no_environment_of_the_course(cluster):
    """A shell with the wrapper's path alone, as a cron job or a terminal has it."""
    wrapper = cluster.layout.bin / "nvidia-smi"
    done = cluster.run(["env", "-i", f"PATH={os.defpath}", str(wrapper), "-L"])
    assert done.returncode == 0 and done.stdout.count("(virtual)") == 4
