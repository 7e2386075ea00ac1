"""The conventions of Jupyter's docker-stacks: any user, start hooks, homes, a hub's command."""

import pytest

from tests.image.conftest import PROFILE

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

HOOKS = "/usr/local/bin/{}.d"


@pytest.mark.parametrize("user", ["12345:100", "12345:0", "12345:12345"])
def test_any_user_will_do(start, user):
    container = start("--user", user, "--passwd=false")  # docker adds no line to /etc/passwd either
    container.token()
    seen = container.run('echo "$(id -u):$(id -g) $(id -un) $HOME"; srun -N2 --gres=gpu:1 whoami; '
                         'touch ~/mine && echo kept')
    assert seen.stdout.split() == [user, "user12345", "/home/jovyan", "user12345", "user12345",
                                   "kept"], seen.stderr
    assert container.stop() == "0"


def test_a_user_without_a_name_is_told_which_would_do(start):
    said, code = start("--user=12345:7", "--passwd=false").ended()
    assert code == 1 and "the group may be 100, 0, or 500 and above" in " ".join(said)


def test_root_becomes_the_named_user(start):
    add = ("--cap-add=SETUID", "--cap-add=SETGID", "--cap-add=CHOWN", "--user=root")
    container = start(*add, "--env=NB_UID=4321", "--env=NB_GID=100", "--env=NB_USER=ada",
                      command=["bash", "-c", "id -un; id -u; id -g; grep CapEff /proc/self/status"])
    assert container.ended() == (["ada", "4321", "100", "CapEff:", "0" * 16], 0)


def test_an_empty_volume_serves_another_user_too(start, volume):
    container = start(f"--volume={volume}:/home/jovyan", "--user=12345:100")
    container.token()
    assert container.run("ls code/dp_two_nodes.sh").stdout.split() == ["code/dp_two_nodes.sh"]


@pytest.mark.parametrize("flags", [
    ["--read-only"], ["--read-only", "--user=12345:100"], ["--volume={volume}:/home/jovyan:ro"],
    ["--read-only", "--read-only-tmpfs=false", "--volume={volume}:/home/jovyan"]])
def test_what_is_read_only_is_refused_with_what_to_mount(start, volume, flags):
    container = start(*[flag.format(volume=volume) for flag in flags])
    said, code = container.ended()
    place = "/tmp" if "--read-only-tmpfs=false" in flags else "/home/jovyan"
    assert code == 1 and f"error: {place} is read-only" in " ".join(said)
    assert "-v labs-home:/home/jovyan (without :ro), with --read-only also --tmpfs /tmp" in (
        " ".join(said))


def test_a_read_only_container_with_a_home_works(start, volume):
    container = start("--read-only", f"--volume={volume}:/home/jovyan")
    container.token()
    assert container.run("srun -N2 true").returncode == 0


def test_hooks_run_in_order_and_may_set_variables(start, tmp_path):
    hooks = {"start-notebook": {"10-a.sh": "export SAID=one", "20-b": "echo ran $SAID",
                                "30-c.txt": "echo never", "40-d.sh": "false"},
             "before-notebook": {"10-e.sh": "SAID=$SAID,two"}}
    mounts = []
    for name, files in hooks.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(f"#!/bin/bash\n{text}\n")
            (folder / file).chmod(0o644 if "." in file else 0o755)
        mounts.append(f"--volume={folder}:{HOOKS.format(name)}:ro")
    container = start(*mounts, command=["sh", "-c", "echo $SAID"])
    said, code = container.ended()
    text = " ".join(said)
    assert code == 0 and "never" not in text and "ran one one,two" in text
    assert "30-c.txt is neither *.sh nor executable" in text
    assert "40-d.sh has failed, going on" in text


@pytest.mark.parametrize("command", [["jupyterhub-singleuser", "--debug"], [],
                                     ["start-singleuser.py"]])
def test_a_hubs_command_is_recognised(start, command):
    """There is no hub here, so the server ends, having asked for it; tests/image/test_hub.py has
    a hub."""
    container = start(
        "--env=JUPYTERHUB_SERVICE_URL=http://0.0.0.0:8888/user/ada/",
        "--env=JUPYTERHUB_SERVICE_PREFIX=/user/ada/", "--env=JUPYTERHUB_API_TOKEN=none",
        "--env=JUPYTERHUB_API_URL=http://127.0.0.1:9/hub/api",
        "--env=JUPYTERHUB_CLIENT_ID=jupyterhub-user-ada", "--env=JUPYTERHUB_USER=ada",
        command=command)
    said, code = container.ended()
    text = " ".join(said)
    assert code == 1 and "the cluster is up" in text and "127.0.0.1:9" in text
    assert "the cluster is down" in text


def test_dockers_own_profile_leaves_the_cluster_on_loopback(start, dockers_profile):
    container = start(dockers_profile)
    container.token()
    assert "loopback mode" in container.log()
    assert container.run("srun -N2 true").returncode == 0


def test_where_namespaces_are_open_the_nodes_have_networks_of_their_own(start):
    container = start(f"--security-opt=seccomp={PROFILE}", "--security-opt=unmask=ALL")
    container.token()
    assert "2 nodes (namespaces)" in container.log()
    named = container.run("srun -N2 hostname")
    assert sorted(named.stdout.split()) == ["slurmnode1", "slurmnode2"], named.stderr


def test_a_command_of_ones_own_replaces_the_lab(start):
    assert start(command=["lab", "cluster", "status"]).ended()[1] == 3
