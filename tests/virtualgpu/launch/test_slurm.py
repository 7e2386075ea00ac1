"""srun and sbatch start virtualrun on the nodes of a real cluster, one task per rank."""

import re

import psutil
import pytest

from .running import SCRIPTS

pytestmark = [pytest.mark.cluster, pytest.mark.stress]  # every rank imports torch by itself

# The program ignores its last argument, by which its processes are found.
PROGRAM = f"virtualrun --gpus h100:2 --nodes {{nodes}} {SCRIPTS}/ddp.py plain 64 {{name}}"
PATIENCE = 300  # seconds of real time; a busy machine is no failure


def expect_one_report(name, text, error, ranks):
    """All ranks have the same parameters; there is one report, and nothing else is printed or left.

    Args:
        name: last argument of the ranks' command lines.
        text: what they printed on stdout.
        error: what they printed on stderr.
        ranks: how many there were.
    """
    assert len(re.findall(r"step 2 loss \d", text)) == 1, text + error
    matches = re.findall(r"tensor\(\[(\S+)\]", text)
    assert len(matches) == ranks and len({*matches}) == 1, text
    assert error.count(f"virtualrun: {ranks} x virtual h100-80gb") == 1, error
    assert all(line.startswith("virtualrun: ") for line in error.splitlines()), error
    assert not [process for process in psutil.process_iter(["cmdline"])
                if name in (process.info["cmdline"] or ())]


def test_four_tasks_of_srun_on_two_nodes(cluster):
    name = f"{cluster.home}/srun"
    ended = cluster.run(f"srun --nodes 2 --ntasks-per-node 2 {PROGRAM.format(nodes=2, name=name)}",
                        PATIENCE)
    assert ended.returncode == 0, ended.stderr
    expect_one_report(name, ended.stdout, ended.stderr, 4)


def test_torchrun_in_a_batch_job(cluster):
    name = f"{cluster.home}/torchrun"
    (cluster.home / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH --output=job.out --error=job.err\n"
        "torchrun --standalone --nproc-per-node 2 --no-python "
        f"{PROGRAM.format(nodes=1, name=name)}\n")
    state = cluster.batch("job.sh", PATIENCE)
    text, error = ((cluster.home / f"job.{name}").read_text() for name in ("out", "err"))
    assert state == "COMPLETED", error
    expect_one_report(name, text, error, 2)
