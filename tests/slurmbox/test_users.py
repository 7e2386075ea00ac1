"""An ordinary user: with the installed Slurm, and with a private copy unpacked from packages.

The user is made where the tests run as root; as an ordinary user every other test proves the same.
"""

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from labcore.workspace import CODE
from slurmbox import accounting
from slurmbox.install import locate
from tests.needs import because, require

from ..conftest import RunningCluster

pytestmark = pytest.mark.cluster
NAME = "lab-student"


class User:
    """Runs commands as the user, in the user's home, with a Python that the user may start."""

    def __init__(self, home: Path) -> None:
        self.home, self.bin = home, home / "venv" / "bin"

    def run(self, script, timeout=120, **environment):
        values = {"HOME": str(self.home), "LAB_HOME": str(self.home / "my work"),
                  "PATH": f"{self.bin}:/usr/bin:/bin", **environment}
        words = ["runuser", "-u", NAME, "--", "env", "-i",
                 *(f"{name}={value}" for name, value in values.items()), "bash", "-c", script]
        return subprocess.run(words, cwd="/", text=True, capture_output=True, timeout=timeout,
                              stdin=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    require("root", "useradd")
    python = f"/usr/bin/python3.{sys.version_info.minor}"
    if not os.path.exists(python):
        pytest.skip(f"no ordinary user can be tested: {python} is missing")
    try:
        pwd.getpwnam(NAME)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", NAME], check=True)
    home = Path("/var/tmp") / f"{NAME}-{os.getpid()}"
    home.mkdir()
    packages = Path(pytest.__file__).parents[1]
    subprocess.run([python, "-m", "venv", "--without-pip", home / "venv"], check=True)
    site = next((home / "venv/lib").glob("python*/site-packages"))
    (site / "lab.pth").write_text(f"{CODE}\n{packages}\n")
    (home / "venv/bin/lab").write_text(
        f"#!{home}/venv/bin/python\nimport argparse, sys\nfrom slurmbox import cli\n"
        "from labcore.errors import LabError\ntop = argparse.ArgumentParser()\n"
        "cli.add_parser(top.add_subparsers())\narguments = top.parse_args()\n"
        "try:\n    sys.exit(arguments.run(arguments) or 0)\n"
        "except LabError as error:\n    sys.exit(f'lab: error: {error}')\n")
    (home / "venv/bin/lab").chmod(0o755)
    subprocess.run(["chown", "-R", NAME, home], check=True)
    made = User(home)
    if made.run("python -c 'import slurmbox.control'").returncode:
        pytest.skip(f"no ordinary user can be tested: {NAME} cannot read this checkout")
    yield made
    made.run("lab cluster down")
    left = subprocess.run(["ps", "-u", NAME, "-o", "stat=,args="], text=True, capture_output=True)
    shutil.rmtree(home, ignore_errors=True)
    subprocess.run(["userdel", NAME], check=False, capture_output=True)
    assert not [line for line in left.stdout.splitlines() if not line.startswith("Z")]


WORK = """
set -e
eval "$(lab cluster env)"
srun -N2 id -un | sort -u
salloc -N2 srun bash -c 'echo $SLURMD_NODENAME' 2>/dev/null | sort
grep CapEff /proc/self/status | cut -f2
srun grep CapEff /proc/self/status | cut -f2
mkdir -p "$LAB_HOME/out"
sbatch --wait -o "$LAB_HOME/out/job.txt" --wrap 'cd /dli && pwd -P && exit 3' >/dev/null || true
cat "$LAB_HOME/out/job.txt"
sacct -n -P -o user,state | tail -1
sleep 0.2
"""


def test_an_ordinary_user_runs_a_cluster_beside_roots(user, cluster):
    up = user.run("lab cluster up")
    assert up.returncode == 0, up.stderr
    done = user.run(WORK)
    down = user.run("lab cluster status && lab cluster down")
    assert down.returncode == 0, done.stderr + down.stdout + down.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == [NAME, "slurmnode1", "slurmnode2"], done.stderr
    assert set(lines[3:5]) == {"0000000000000000"}  # jobs hold no rights over the namespaces
    if "(namespaces)" in up.stdout:
        assert lines[5] == str(user.home / "my work")
    assert lines[-1] == f"{NAME}|FAILED"
    assert cluster.run("srun -N2 true").returncode == 0


# A process that says of itself what a rank on a virtual card says.
PRETEND = """
set -e
eval "$(lab cluster env)"
cat > pretend.sh <<'END'
#!/bin/bash
mkdir -p "$RANK_STATUS"
cat > "$RANK_STATUS/0.json" <<JSON
{"node": "$SLURMD_NODENAME", "job": "$SLURM_JOB_ID", "gpu": 0, "slot": 1, "pid": $$,
 "card": "v100-sxm2-16gb", "memory_used": 1048576000, "memory_total": 16944988160,
 "utilization": 0.5}
JSON
exec sleep 100
END
job=$(sbatch --parsable -o out.txt pretend.sh)
until [ -s "$LAB_HOME/.cluster/ranks/$job/0.json" ]; do sleep 0.1; done
nvidia-smi --format=csv,noheader --query-compute-apps=node,gpu_bus_id,used_memory
scancel "$job"
"""


@pytest.mark.parametrize("mode", ["auto", "loopback"])
def test_an_ordinary_user_sees_the_processes_on_virtual_cards(user, mode):
    """From the login node, which is outside of the nodes' PID namespace."""
    up = user.run(f"lab cluster up --mode {mode}")
    assert up.returncode == 0, up.stderr
    done = user.run(f'cd "$LAB_HOME"\n{PRETEND}')
    assert user.run("lab cluster down").returncode == 0
    assert done.stdout == "slurmnode1, 00000000:1C:00.0, 1000 MiB\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "loopback"])
def test_without_an_installed_slurm_the_packages_are_unpacked(user, mode):
    """The installed Slurm is hidden; the packages come from the distribution's own server."""
    require("apt-get")
    hidden = {"LAB_SLURM_UNPACKED": "1", "LAB_SLURM_PREFIX": str(user.home / "a slurm")}
    up = user.run(f"lab cluster up --mode {mode}", **hidden)
    if "failed while unpacking" in up.stderr and "Temporary failure" in up.stderr:
        pytest.skip(because("packages"))
    assert up.returncode == 0, up.stderr
    done = user.run('eval "$(lab cluster env)"; srun -N2 bash -c "readlink /proc/\\$PPID/exe"',
                    **hidden)
    assert user.run("lab cluster down", **hidden).returncode == 0
    assert done.stdout.splitlines() == [f"{user.home}/a slurm/usr/sbin/slurmstepd-wlm"] * 2


@pytest.mark.slow
def test_accounting_knows_steps_and_memory(make_cluster):
    slurm = locate()
    if accounting.missing_programs(slurm):
        pytest.skip(because("accounting"))
    full: RunningCluster = make_cluster(accounting=True)
    full.run("srun -J one python -c 'b = b\"x\" * 3 * 10**8; import time; time.sleep(2.5)'")

    def rows():
        out = full.run("sacct -n -P -o JobID,JobName,State,MaxRSS").stdout
        return [line.split("|") for line in out.splitlines()]

    assert full.until(lambda: [row[0] for row in rows()[1:]] == ["1.0"] and rows()[1][3])
    assert rows()[1][1:3] == ["one", "COMPLETED"]
    assert float(rows()[1][3].rstrip("KM")) > 2e5
    assert "lab" in full.run("sacctmgr -n list cluster").stdout
