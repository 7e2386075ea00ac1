"""The container: built, started without privileges, used, stopped (`make test-image`)."""

import json
import os
import subprocess

import pytest

import image as images
from labcore.workspace import CHECKOUT
from tests.image import layers

pytestmark = [pytest.mark.image, pytest.mark.timeout(2400)]

JOB = ("sbatch --wait --parsable code/dp_two_nodes.sh --train-iters 4 --log-interval 1 "
       "--eval-iters 1")


def test_hadolint_finds_nothing(hadolint):
    done = subprocess.run([hadolint, images.DOCKERFILE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_student_finds_no_answers_no_secrets_and_nothing_of_the_builder(podman, image):
    names = [(name, content) for name, _, content in layers.files(podman, image)]
    assert any(name == "opt/course/code/lab/start.py" for name, _ in names)
    assert not layers.problems(names)
    answers = layers.answers(CHECKOUT)
    assert len(answers) > 50
    notebooks = [content for _, content in names if content]
    assert notebooks and not [one for one in answers for text in notebooks if one in text]
    config = json.loads(podman("image", "inspect", "--format", "{{json .Config}}", image))
    assert config["User"] == "1000:100" and "8888/tcp" in config["ExposedPorts"]
    variables = {text.partition("=")[0] for text in config["Env"]}
    assert variables == {"PATH", "LANG", "LAB_HOME", "HOME", "NB_USER", "NB_UID", "NB_GID"}
    assert not layers.problems([(text, b"") for text in config["Env"] + config["Cmd"]])


def test_it_is_no_larger_than_the_cpu_build_needs(podman, image):
    size = int(podman("image", "inspect", "--format", "{{.Size}}", image))
    assert size < 2.6e9, "has a CUDA build of torch, or another large package, slipped in?"


def test_jupyterlab_answers_from_outside_and_only_with_the_token(container):
    token = container.token()
    assert container.get("/api") == 200
    assert container.get("/api/contents") == 403
    assert container.get("/api/contents", "wrong") == 403
    assert container.get("/api/contents", token) == 200
    assert container.get("/lab", token) == 200


def test_the_health_check_passes(podman, container):
    assert podman.try_to("healthcheck", "run", container.name).returncode == 0


def test_every_container_has_a_token_of_its_own(container, start):
    assert start().token() != container.token()


def test_it_is_an_ordinary_user_without_capabilities(container):
    seen = container.run('id -un; id -u; id -g; grep CapEff /proc/self/status; echo "$LAB_HOME"; '
                         'readlink /dli; pip list --format=freeze | grep -ci "^nbgrader="')
    assert seen.stdout.split() == ["jovyan", "1000", "100", "CapEff:", "0" * 16,
                                   "/home/jovyan/work", "/home/jovyan/work", "0"], seen.stderr


def test_the_cluster_is_up_over_loopback(container):
    assert "loopback mode" in container.log()
    nodes = container.run("sinfo --noheader --Node --format '%N %t'")
    assert nodes.stdout.split() == ["slurmnode1", "idle", "slurmnode2", "idle"], nodes.stderr


def test_it_starts_within_seconds(container, say):
    """The limits are for an idle machine; the report's line says what else went on."""
    phases = container.phases()
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    say("after the container's start, " + ", ".join(
        f"{name} {seconds:.1f} s" for name, seconds in phases.items()) + f" ({load})")
    assert "copying the data that was made with this image" in container.log()
    busy = max(1.0, os.getloadavg()[0] / os.cpu_count())
    assert phases["nodes idle"] <= 10 * busy and phases["JupyterLab answers"] <= 10 * busy


def test_no_link_leads_to_a_notebook_that_is_not_there(container):
    assert "worked" not in container.run("ls notebooks").stdout
    assert container.run("grep -c Stuck? notebooks/*.ipynb | grep -v :0").stdout == ""


def test_the_labs_lie_in_the_workspace(container):
    shipped = {path.name for path in (CHECKOUT / "notebooks").glob("*.ipynb")}
    result = container.run("cd notebooks && ls *.ipynb")
    assert shipped and set(result.stdout.split()) == shipped, result.stderr


def test_the_shipped_job_trains_on_two_nodes(container):
    done = container.run(JOB)
    assert done.returncode == 0, done.stdout + done.stderr + container.run(
        "cat megatron/logs/*").stdout
    job = done.stdout.split()[0]
    state = container.run(f"sacct --noheader --allocations --jobs {job} --format State")
    assert state.stdout.split() == ["COMPLETED"], state.stderr
    log = container.run(f"cat megatron/logs/dp_two_nodes_{job}.txt").stdout
    assert "using world size: 4, data-parallel-size: 4" in log
    assert " iteration        4/       4 |" in log


def test_it_stops_in_order_within_ten_seconds_while_a_job_runs(start):
    container = start()
    container.token()
    submitted = container.run("sbatch --parsable code/dp_two_nodes.sh; "
                              "until squeue --noheader --format %t | grep -q R; do sleep 0.2; done")
    assert submitted.returncode == 0, submitted.stderr
    assert container.stop() == "0"  # 137: SIGKILL had to come
    assert "the cluster is down" in container.log()


def test_an_empty_volume_over_the_home_works_and_outlives_the_container(start, volume):
    mount = f"--volume={volume}:/home/jovyan:nocopy,U"
    first = start(mount)
    first.token()
    assert first.run("ls ~/.bashrc").returncode != 0  # else it was not empty
    assert first.run("sinfo --noheader && echo kept > code/mine.txt").returncode == 0
    assert first.stop() == "0"
    second = start(mount)
    second.token()
    assert second.run("cat code/mine.txt").stdout == "kept\n"
    assert "training a vocabulary" not in second.log()
