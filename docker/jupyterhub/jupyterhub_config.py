"""A JupyterHub on one Linux machine with Docker: each student has a container and a volume.

docs/jupyterhub.md says how to install and start it, and what the variables below mean.
"""

import csv
import os
import re
import sys
from pathlib import Path

c = get_config()  # noqa: F821  JupyterHub's
HERE = Path(__file__).resolve().parent
NETWORK = os.environ.get("LABS_NETWORK", "labs")
IMAGE = os.environ.get("LABS_IMAGE", "large-scale-training-labs")  # :student and :instructor
ROSTER = Path(os.environ.get("LABS_ROSTER", HERE / "students.csv"))
INSTRUCTORS = set(os.environ.get("LABS_INSTRUCTORS", "").split())
HOMES = os.environ.get("LABS_HOMES", "")  # a folder of this machine; without it, volumes
HOME = f"{HOMES}/{{username}}" if HOMES else "labs-{username}"  # DockerSpawner fills in the name
JOVYAN = (1000, 100)  # user and group in the images
COURSE = "labs-course"  # a volume too: the gradebook
NAMES = r"[a-z0-9][a-z0-9._-]{0,62}"  # safe as a folder, as a volume and as an id of the roster


def stop(message):
    sys.exit(f"jupyterhub_config.py: error: {message}")


def students():
    """The ids of the file that `lab roster import` takes."""
    if not ROSTER.is_file():
        stop(f"LABS_ROSTER={ROSTER} is no file: it is the students.csv of `lab roster import`")
    with ROSTER.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        if "id" not in (rows.fieldnames or []):
            stop(f"{ROSTER} has no column id, but {', '.join(rows.fieldnames or ['nothing'])}")
        return {row["id"].strip() for row in rows}


def gateway():
    """This machine's address in the containers' network: there they find the hub."""
    import docker

    for network in docker.from_env().api.networks(names=[NETWORK]):
        if network["Name"] == NETWORK:
            return network["IPAM"]["Config"][0]["Gateway"]
    return stop(f"there is no network {NETWORK}: docker network create "
                f"-o com.docker.network.bridge.enable_icc=false {NETWORK}")


async def before_a_start(spawner):
    """Create the home in LABS_HOMES; give instructors formgrader, the course, and all homes."""
    if HOMES:
        home = Path(HOMES) / spawner.user.name
        if not home.exists():
            home.mkdir(mode=0o700, parents=True)
            os.chown(home, *JOVYAN)
    if spawner.user.name not in INSTRUCTORS:
        return
    spawner.image = f"{IMAGE}:instructor"
    spawner.cmd = ["lab", "formgrader", "--hub"]
    spawner.volumes = {HOME: "/home/jovyan", COURSE: "/home/jovyan/course",
                       **await homes_to_read(spawner)}
    spawner.extra_host_config = LOCKED | {"security_opt": [
        *LOCKED["security_opt"], f"seccomp={SANDBOX}"]}


async def homes_to_read(spawner):
    """Return the folder of all homes, where new students appear automatically, or else the volumes
    that exist when the instructor's container starts."""
    if HOMES:
        return {HOMES: {"bind": "/srv/homes", "mode": "ro"}}
    listed = await spawner.docker("volumes")
    there = {volume["Name"] for volume in listed["Volumes"] or []}
    homes = {HOME.format(username=name): {"bind": f"/srv/homes/{name}", "mode": "ro"}
             for name in sorted(STUDENTS)}
    return {name: bind for name, bind in homes.items() if name in there}


STUDENTS = students()
if HOMES and not os.path.isabs(HOMES):
    stop(f"LABS_HOMES={HOMES} is no absolute path, such as /srv/labs/homes")
if HOMES and os.geteuid() != 0:
    stop(f"LABS_HOMES={HOMES}: only root can give each home to its student's container "
         f"(user {JOVYAN[0]}); run the hub as root, or leave LABS_HOMES out")
if bad := sorted(name for name in STUDENTS | INSTRUCTORS if not re.fullmatch(NAMES, name)):
    stop(f"{bad[0]!r} cannot be a user here: a name has to match {NAMES}")
if both := STUDENTS & INSTRUCTORS:
    stop(f"{sorted(both)[0]} is a student in {ROSTER} and in LABS_INSTRUCTORS: take one")
# The profile with which the grading sandbox works. Docker's API takes its text, podman's its path.
SANDBOX = os.environ.get("LABS_SECCOMP") or (HERE.parent / "seccomp-sandbox.json").read_text()
LOCKED = {"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "pids_limit": 4096}

# Who logs in how is the site's: the default, PAM, means this machine's own users.
c.Authenticator.allowed_users = STUDENTS | INSTRUCTORS
c.Authenticator.username_pattern = NAMES

c.JupyterHub.spawner_class = "dockerspawner.DockerSpawner"
c.JupyterHub.hub_ip = os.environ.get("LABS_HUB_IP") or gateway()
c.JupyterHub.bind_url = os.environ.get("LABS_BIND_URL", "http://127.0.0.1:8000")
c.DockerSpawner.network_name = NETWORK
c.DockerSpawner.use_internal_ip = True
c.DockerSpawner.image = f"{IMAGE}:student"
c.DockerSpawner.pull_policy = "never"  # an image that is not there is a mistake
c.DockerSpawner.cmd = ["jupyterhub-singleuser"]
c.DockerSpawner.remove = True  # a container keeps nothing: all of a student's is in the volume
c.DockerSpawner.volumes = {HOME: "/home/jovyan"}
c.DockerSpawner.mem_limit = os.environ.get("LABS_MEMORY", "3G")
c.DockerSpawner.cpu_limit = float(os.environ.get("LABS_CPUS", "2"))
c.DockerSpawner.extra_host_config = LOCKED
c.DockerSpawner.environment = {"OMP_NUM_THREADS": "1"}
c.DockerSpawner.pre_spawn_hook = before_a_start
c.Spawner.default_url = "/lab/tree/notebooks/00_welcome.ipynb"
c.Spawner.start_timeout = 120  # seconds; the first start lays out the labs
c.Spawner.http_timeout = 120
