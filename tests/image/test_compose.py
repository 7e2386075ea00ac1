"""The cluster of containers: used, broken, slowed down, taken down and up again."""

import re
import time

import pytest

import image as images
from tests.image.compose import NODES, PACKAGE, SERVICES, Compose

pytestmark = [pytest.mark.image, pytest.mark.timeout(2400)]

# Ten megabytes at a time for two seconds, from the first node to the second; prints Mbit/s.
RATE = """\
import os, socket, time
port = 20000
if os.environ["SLURMD_NODENAME"] == "slurmnode2":
    with socket.create_server(("", port)) as server:
        connection, _ = server.accept()
        while connection.recv(1 << 20):
            pass
else:
    while True:
        try:
            connection = socket.create_connection(("slurmnode2", port), timeout=20)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    sent, began = 0, time.monotonic()
    while time.monotonic() < began + 2:
        sent += connection.send(bytes(1 << 20))
    print("Mbit/s:", 8e-6 * sent / (time.monotonic() - began))
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compose")
    images.pip_install(folder, PACKAGE)
    return folder / "bin" / "podman-compose"


@pytest.fixture(scope="module")
def cluster(podman, image, program, say):
    made = Compose(podman, program)
    try:
        began = time.monotonic()
        made.up()
        made.wait_for(made.idle, "idle nodes")
        idle = time.monotonic() - began
        made.wait_for(made.answers, "JupyterLab")
        say(f"compose: up to idle nodes in {idle:.1f} s, to JupyterLab in "
            f"{time.monotonic() - began:.1f} s")
        yield made
    finally:
        made("down", "--volumes")


def rate(cluster):
    cluster.run(f"cat > code/rate.py <<'END'\n{RATE}END")
    printed = cluster.run("srun -N2 -n2 python code/rate.py; srun -n1 printenv VIRTUAL_NETWORK")
    match = re.search(r"Mbit/s: ([\d.]+)", printed)
    assert match, printed
    return float(match[1]), "ethernet:" in printed


def test_notebooks_see_two_nodes_with_virtual_gpus(cluster):
    assert "the cluster is up: 2 nodes in one container each" in cluster.log("lab")
    cluster.wait_for(lambda: bool(cluster.address()), "the address")
    seen = cluster.run("srun -N2 --gres=gpu:v100:2 bash -c 'echo $(hostname) $(id -un) "
                       "$CUDA_VISIBLE_DEVICES $VIRTUAL_GPU $(readlink /dli)' | sort").splitlines()
    assert seen == [f"{name} jovyan 0,1 v100-sxm2-16gb /home/jovyan/work" for name in NODES]
    assert "slurmnode2    idle      slurmnode2          2 x v100" in cluster.run(
        "lab cluster status")
    assert "slurmnode2:\nGPU 0: Tesla V100" in cluster.run("nvidia-smi -L")


def test_nodes_have_no_way_out_no_capability_and_no_other_user(cluster):
    for name in NODES:
        out = cluster.run("python -c 'import socket; socket.create_connection((\"1.1.1.1\", 80), "
                          "timeout=3)'", name)
        assert "unreachable" in out or "timed out" in out
    seen = cluster.run("srun -N2 grep -h CapEff /proc/self/status")
    assert seen.split() == ["CapEff:", "0" * 16] * 2


def test_the_key_is_in_no_image_and_not_in_the_workspace(cluster, podman, image):
    key = cluster.run("cat /run/lab-key/munge.key", "slurmnode1").strip()
    assert re.fullmatch("[0-9a-f]{128}", key)
    assert cluster.run(f"grep -rl {key} /home/jovyan/work /opt/course/code") == ""
    empty = podman.try_to("run", "--rm", "--entrypoint", "ls", image, "/run/lab-key")
    assert empty.returncode != 0 or not empty.stdout.strip()


def test_a_job_trains_on_both_nodes(cluster):
    job = cluster.run("sbatch --wait --parsable code/dp_two_nodes.sh --train-iters 8 "
                      "--log-interval 2 --eval-iters 1", timeout=900).split()[0]
    assert cluster.run(f"sacct -n -X -j {job} -o State").split() == ["COMPLETED"]
    log = cluster.run(f"cat megatron/logs/dp_two_nodes_{job}.txt")
    assert "using world size: 4, data-parallel-size: 4" in log
    losses = [float(word) for word in re.findall(r"\| lm loss: (\S+)", log)]
    assert len(losses) == 4 and losses[-1] < losses[0] - 0.1
    assert f"job {job}" in cluster.run(f"lab top --once {job}")


def test_salloc_and_scancel_work(cluster):
    assert set(NODES) <= set(cluster.run("salloc -N2 srun hostname").split())
    cluster.run("scancel $(sbatch --parsable -N2 --wrap 'srun sleep 300')")
    cluster.wait_for(lambda: cluster.run("squeue -h") == "", "an empty queue")


def test_a_node_dies_while_a_job_runs_and_comes_back(cluster, podman):
    job = cluster.run("sbatch --parsable --no-requeue -N2 --ntasks-per-node=1 --wrap "
                      "'srun sleep 900'").strip()
    # The job runs before its step does; a step that does not start is a failure of the job's own.
    cluster.wait_for(lambda: f"{job}.0" in cluster.run("squeue -h -s -o %i"), "a running step")
    podman("kill", cluster.container("slurmnode2"))
    cluster.wait_for(lambda: cluster.nodes().get("slurmnode2") == "down*", "a node that is down")
    cluster.wait_for(lambda: "NODE_FAIL" in cluster.run(f"sacct -n -j {job} -o State"), "the end")
    assert cluster.nodes()["slurmnode1"] in ("idle", "comp")
    said = cluster.run("lab cluster status; lab cluster node slurmnode2 start")
    assert "slurmnode2 is down*" in said
    assert "docker compose -f docker/compose.yml up -d slurmnode2" in said
    cluster.up("slurmnode2")
    cluster.wait_for(cluster.idle, "both nodes idle again")
    assert cluster.run("srun -N2 hostname | sort").split() == list(NODES)


@pytest.mark.parametrize("silent", [0, 8])
def test_a_job_of_a_node_that_comes_back_at_once_starts_again(cluster, podman, silent):
    """silent: for how many seconds the controller gives no answer, longer than clients wait."""
    job = cluster.run("sbatch --parsable -N2 --ntasks-per-node=1 --wrap 'srun sleep 900'").strip()
    cluster.wait_for(lambda: f"{job}.0" in cluster.run("squeue -h -s -o %i"), "a running step")
    starts = cluster.log("slurmnode2").count("slurmd responds")
    podman("kill", cluster.container("slurmnode2"))
    if silent:
        podman("pause", cluster.container("controller"))
    podman("start", cluster.container("slurmnode2"))
    if silent:
        time.sleep(silent)
        podman("unpause", cluster.container("controller"))
    cluster.wait_for(lambda: cluster.log("slurmnode2").count("slurmd responds") > starts, "slurmd")
    if f"before: {job}" not in cluster.log("slurmnode2"):
        # It was away for so long that Slurm noticed first, which then holds the job for a while.
        cluster.run(f"scontrol update jobid={job} starttime=now")
    states = f"sacct -n -D -P -j {job} -o State"
    cluster.wait_for(lambda: cluster.run(states).split() == ["NODE_FAIL", "RUNNING"],
                     "it runs again")
    cluster.run(f"scancel {job}")
    cluster.wait_for(cluster.idle, "idle nodes")


def test_jobs_outlive_the_controllers_death(cluster, podman):
    job = cluster.run("sbatch --parsable -N2 --wrap 'srun sleep 900'").strip()
    cluster.wait_for(lambda: cluster.run("squeue -h -o %t").strip() == "R", "a running job")
    time.sleep(6)  # Slurm writes its queue every few seconds
    podman("kill", cluster.container("controller"))
    podman("start", cluster.container("controller"))
    cluster.wait_for(lambda: cluster.run("squeue -h -o '%A %t'").split() == [job, "R"], "the job")
    cluster.run(f"scancel {job}")
    cluster.wait_for(cluster.idle, "idle nodes")


def test_what_dies_inside_is_started_again(cluster):
    for service, daemon in (("slurmnode1", "slurmd"), ("slurmnode1", "munged"),
                            ("controller", "slurmctld"), ("lab", "munged")):
        cluster.run(f"kill -9 $(pgrep -x {daemon})", service)
    cluster.wait_for(lambda: cluster.run("srun -N2 hostname | sort").split() == list(NODES),
                     "a working cluster")


def test_memory_of_each_part(cluster, podman, say):
    used = [podman("stats", "--no-stream", "--format", "{{.MemUsage}}",
                   cluster.container(name)).partition(" /")[0] for name in SERVICES]
    say("compose, idle: " + ", ".join(f"{name} {size}" for name, size in
                                      zip(SERVICES, used, strict=True)))


def test_the_link_is_shaped_and_the_work_is_kept(cluster, say):
    fast, told = rate(cluster)
    assert fast > 2 * 200 and not told
    cluster.run("echo mine > code/mine.txt")
    cluster("down")
    for name in SERVICES:
        assert cluster.podman.try_to("inspect", cluster.container(name)).returncode
    cluster.up(LINK="200mbit")
    cluster.wait_for(cluster.idle, "idle nodes")
    slow, told = rate(cluster)
    say(f"compose: {fast:.0f} Mbit/s unshaped, {slow:.0f} with LINK=200mbit")
    assert 150 < slow < 210 and told
    assert "link 200mbit" in cluster.run("lab cluster status")
    assert cluster.run("cat code/mine.txt") == "mine\n"
    assert "dp_two_no+" in cluster.run("sacct -n -S 2020-01-01")


def test_it_ends_in_order_within_ten_seconds_while_a_job_runs(cluster):
    cluster.run("sbatch -N2 --ntasks-per-node=1 --wrap 'srun sleep 900'")
    cluster.wait_for(lambda: cluster.run("squeue -h -o %t").strip() == "R", "a running job")
    cluster("stop")
    codes = {name: cluster.state(name, "ExitCode") for name in SERVICES}
    assert codes == dict.fromkeys(SERVICES, "0") | {"lab": "0"}  # 137: SIGKILL had to come
    assert "controller: jobs cancelled: 1" in cluster.log("controller")


@pytest.mark.parametrize(("variable", "value", "said"), [
    ("LINK", "900gbit", "link rate '900gbit': not between 1mbit and 400gbit; nearest: 400gbit"),
    ("GPUS", "v100:9", "nearest: v100:8")])
def test_a_value_that_cannot_be_ends_it_with_the_nearest(cluster, variable, value, said):
    cluster("down")
    # podman-compose would wait forever until a part runs that has ended already.
    cluster.up("--no-deps", "controller", *NODES, **{variable: value})
    for service in ("controller", *NODES):
        cluster.wait_for(lambda name=service: cluster.state(name, "Status") == "exited", service)
        assert said in cluster.log(service) and "Traceback" not in cluster.log(service)


def test_without_the_right_to_shape_it_says_so(cluster, podman, program):
    cluster("down", "--volumes")
    bare = Compose(podman, program, lambda text: text.replace("NET_ADMIN, ", ""))
    try:
        bare.up(LINK="200mbit")
        bare.wait_for(bare.idle, "idle nodes")
        fast, told = rate(bare)
        assert fast > 2 * 200 and not told
        assert "link 200mbit is not possible, so unlimited" in bare.log("slurmnode1")
        assert "200mbit is not possible" in bare.run("lab cluster status")
    finally:
        bare("down", "--volumes")
