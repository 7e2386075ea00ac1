"""site.toml and the commands that it makes, with stand-ins for the site's own."""

import os
import re
import subprocess

import pytest

from labcore.errors import LabError
from lablib import jobs
from slurmbox import clients, site, site_clients
from slurmbox.layout import Layout
from virtualgpu.core.slots import INSTEAD_OF_CPU

WHOLE = """
[slurm]
partition = "gpu"
account = "course"
gpus-per-node = 2
time = 00:20:00
[trainer]
device = "cuda"
virtual-gpu = "v100"
[environment]
NCCL_SOCKET_IFNAME = "ib0"
GREETING = "two words; $HOME 'n' all"
"""
PYXIS = '[container]\nstart = "pyxis"\nimage = "docker://labs"\nmounts = ["/a b", "/c:/d:ro"]\n'
APPTAINER = PYXIS.replace("pyxis", "apptainer")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A workspace on a machine whose Slurm says how it was called."""
    commands = tmp_path / "site commands"
    commands.mkdir()
    for name in ("sbatch", "srun", "salloc", "apptainer"):
        (commands / name).write_text('#!/bin/sh\nprintf "<%s>" "${0##*/}" "$@"; echo; env\n')
        (commands / name).chmod(0o755)
    for name in [name for name in os.environ if name.startswith(("SLURM_", "LAB_SITE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    home = tmp_path / "work"
    home.mkdir()
    monkeypatch.setenv("LAB_HOME", str(home))
    return home


def use(home, text):
    site.path(home).write_text(text)
    layout = Layout(home)
    layout.prepare()
    site_clients.use(layout, lambda line: None)


def call(home, *words, **environment):
    """(its words, its environment) as the site's own command gets them."""
    done = subprocess.run(words, capture_output=True, text=True, cwd=home,
                          env=clients.full_environment(home) | environment)
    assert done.returncode == 0, done.stderr
    said, *lines = done.stdout.splitlines()
    return said, dict(line.split("=", 1) for line in lines if "=" in line)


@pytest.mark.parametrize("name, prefix", site_clients.PREFIXES.items())
def test_a_command_brings_along_what_the_profile_says(home, name, prefix):
    use(home, WHOLE)
    said, environment = call(home, name, "-N2", "a b")
    assert said == f"<{name}><-N2><a b>"
    wanted = {"PARTITION": "gpu", "ACCOUNT": "course", "GPUS_PER_NODE": "2",
              "TIMELIMIT": "00:20:00"}
    for end, value in wanted.items():
        assert environment[f"{prefix}_{end}"] == value
    assert environment["NCCL_SOCKET_IFNAME"] == "ib0"
    assert environment["GREETING"] == "two words; $HOME 'n' all"
    assert environment[INSTEAD_OF_CPU] == "cuda"
    assert environment["VIRTUAL_GPU"] == "v100-sxm2-16gb"


def test_a_site_without_gpus_drops_what_scripts_request(home):
    """Slurm takes the variable for more than a script's own --gpus-per-node."""
    use(home, "[slurm]\ngpus-per-node = 0\n")
    _, environment = call(home, "sbatch", "mine.sh")
    assert environment["SBATCH_GPUS_PER_NODE"] == "0"


def test_srun_in_a_job_has_what_the_job_was_given_and_tells_lab_top(home):
    use(home, WHOLE)
    _, environment = call(home, "srun", "hostname", SLURM_JOB_ID="7")
    assert "SLURM_PARTITION" not in environment and "SLURM_GPUS_PER_NODE" not in environment
    assert environment["RANK_STATUS"] == f"{home}/.cluster/ranks/7"
    assert environment["NCCL_SOCKET_IFNAME"] == "ib0"


def test_a_site_that_exports_nothing_exports_for_us(home):
    use(home, "")
    _, environment = call(home, "sbatch", "x.sh", SBATCH_EXPORT="NONE")
    assert environment["SBATCH_EXPORT"] == "ALL"


def test_pyxis_starts_the_container_by_options_of_srun(home):
    use(home, PYXIS)
    said, _ = call(home, "srun", "--label", "hostname", SLURM_JOB_ID="7")
    own = ",".join(f"{one}:{one}" for one in (home, site_clients.workspace.CHECKOUT))
    assert said == (f"<srun><--container-image=docker://labs><--container-mounts={own},/a b:/a b,"
                    f"/c:/d:ro><--container-env=LAB_HOME><--container-workdir={home}><--label>"
                    "<hostname>")
    assert call(home, "sbatch", "x.sh")[0] == "<sbatch><x.sh>"
    assert not (Layout(home).site_bin / "python").exists()


def test_apptainer_starts_python_and_torchrun_inside_jobs_only(home):
    use(home, APPTAINER)
    said, environment = call(home, "torchrun", "--nnodes", "2", SLURM_JOB_ID="7")
    assert said == (f"<apptainer><exec><--nv><--bind><{home},{site_clients.workspace.CHECKOUT},"
                    "/a b,/c:/d:ro><docker://labs><torchrun><--nnodes><2>")
    assert environment["APPTAINERENV_LAB_HOME"] == str(home)
    outside = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], text=True,
                             capture_output=True, env=clients.full_environment(home))
    assert outside.stdout.strip() == site_clients.sys.prefix
    use(home, "")  # and back
    assert not (Layout(home).site_bin / "python").exists()


def test_a_profile_that_was_changed_is_not_used_unread(home):
    use(home, WHOLE)
    later = os.stat(Layout(home).site_bin / "sbatch").st_mtime + 1
    os.utime(site.path(home), (later, later))
    done = subprocess.run(["sbatch", "x.sh"], capture_output=True, text=True,
                          env=clients.full_environment(home))
    assert done.returncode == 1
    assert done.stderr == f"sbatch: error: {home}/site.toml has changed: lab cluster use site\n"
    call(home, "srun", "hostname", SLURM_JOB_ID="7")  # a job that runs goes on


def test_a_new_workspace_gets_a_profile_to_fill_in(home):
    layout = Layout(home)
    layout.prepare()
    said = []
    site_clients.use(layout, said.append)
    assert site.path(home).read_text() == site.TEMPLATE
    assert said[0].startswith("created ") and said[1].endswith("requests no options")
    filled = re.sub(r"^# (?=\S+ = )", "", site.TEMPLATE, flags=re.M)  # all its examples
    image = home / "labs.sif"
    image.touch()
    site.path(home).write_text(filled.replace("/shared/course/labs.sif", str(image)))
    assert set(site.read(home).slurm) == {"partition", "account", "gpus-per-node", "time"}


def test_a_class_shares_a_profile(home, monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_SITE", str(tmp_path / "class.toml"))
    with pytest.raises(LabError, match=r"LAB_SITE=.*class\.toml: no such file"):
        site.read(home)
    (tmp_path / "class.toml").write_text('[slurm]\nqos = "short"\n')
    assert site.read(home).variables("SBATCH") == {"SBATCH_QOS": "short"}


def test_a_notebook_in_a_job_submits_jobs_of_its_own(home, monkeypatch, capsys):
    use(home, "")
    inside = {"SLURM_JOB_ID": "41", "SLURM_MEM_PER_NODE": "4096", "SLURM_CONF": "/etc/x"}
    monkeypatch.setattr(os, "environ", os.environ | inside)
    jobs.connect()
    assert "runs in job 41" in capsys.readouterr().out
    assert [name for name in os.environ if name.startswith("SLURM_")] == ["SLURM_CONF"]


@pytest.mark.parametrize("text, why", [
    ("partition = gpu", 'strings need quotes'),
    ('[slrum]\npartition = "gpu"', r"\[slrum\]: no such section; nearest: \[slurm\]"),
    ('partition = "gpu"', r"\[partition\]: no such section; nearest: "),
    ('[slurm]\npartitoin = "gpu"', r"\[slurm\] partitoin = 'gpu': .* nearest: partition$"),
    ("[slurm]\ngpus = 2", r"gpus = 2: no such key in this section; nearest: gpus-per-node"),
    ("[slurm]\nnodes = 2", r"nodes = 2: no such key in this section; nearest: "),
    ('[slurm]\ntime = "20 min"', r"time = '20 min': not minutes, .* nearest: \"20\", which are"),
    ("[slurm]\ngpus-per-node = -1", r"gpus-per-node = '-1': .* nearest: 1$"),
    ('[slurm]\ngpus-per-node = "none"', r"gpus-per-node = 'none': .* nearest: 2 or"),
    ('[slurm]\ngpus-per-node = "a100x2"', r"gpus-per-node = 'a100x2': .* nearest: 2$"),
    ('[slurm]\ngres = "gpu:a100:2"', r'gres = .*nearest: gpus-per-node = "a100:2"'),
    ('[slurm]\nmem = "64 GB"', r'mem = \'64 GB\': .*nearest: "64G"'),
    ('[slurm]\nmem = "64G"\nmem-per-cpu = "1G"', "either this or mem; nearest: no mem-per-cpu"),
    ("[slurm]\naccount = true", r"account = True: not a string of one line"),
    ('[slurm]\naccount = ""', r"account = '': not a string of one line"),
    ('[trainer]\ndevice = "gpu"', r"device = 'gpu': not one of cpu, cuda; nearest: c"),
    ('[trainer]\nvirtual-gpu = "v10"', "virtual-gpu = 'v10': .*nearest: v100"),
    ('[container]\nimage = "docker://x"', "start = None: not one of apptainer, singularity, pyxis"),
    ('[container]\nstart = "aptainer"\nimage = "x"', "'aptainer': .*nearest: apptainer"),
    ('[container]\nstart = "pyxis"\nimage = "/no/x.sqsh"',
     "image = '/no/x.sqsh': there is no such image"),
    ('[container]\nstart = "pyxis"\nimage = "x"\nmounts = "/a"', r"mounts = '/a': not a list"),
    ('[container]\nstart = "pyxis"\nimage = "x"\nmounts = ["a"]', r"mounts = \['a'\]: not a list"),
    ('[environment]\n"A-B" = "1"', "A-B = '1': not a valid variable name; nearest: A_B"),
    ('[environment]\nSBATCH_QOS = "1"', "nearest: an option under"),
    ('[environment]\nPATH = "/x"', "nearest: set it before"),
])
def test_a_bad_profile_is_named_with_its_file_its_key_and_what_is_near(home, text, why):
    site.path(home).write_text(text)
    with pytest.raises(LabError, match=why) as error:
        site.read(home)
    assert str(error.value).startswith(f"{home}/site.toml: ")
