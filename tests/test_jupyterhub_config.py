"""docker/jupyterhub/: what is set, what is refused. tests/image/test_hub.py runs the hub."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from traitlets.config.loader import PyFileConfigLoader

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docker" / "jupyterhub"
CLASS = "id,first_name\nada,Ada\ngrace,Grace\n"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The configuration for a roster; variables as LABS_KEY."""
    def load(roster=CLASS, **variables):
        if roster is not None:
            (tmp_path / "students.csv").write_text(roster)
        known = {"ROSTER": str(tmp_path / "students.csv"), "INSTRUCTORS": "prof ta",
                 "HUB_IP": "10.0.0.1"}
        for key, value in (known | variables).items():
            monkeypatch.setenv(f"LABS_{key}", value)
        return PyFileConfigLoader("jupyterhub_config.py", path=str(FOLDER)).load_config()

    return load


def spawner(config, name, volumes=()):
    async def docker(method):
        assert method == "volumes"
        return {"Volumes": [{"Name": volume} for volume in volumes]}

    made = SimpleNamespace(user=SimpleNamespace(name=name), docker=docker,
                           **{key: config.DockerSpawner[key]
                              for key in ("image", "cmd", "volumes", "extra_host_config")})
    with ThreadPoolExecutor(1) as thread:  # this one's loop may be a browser's
        thread.submit(asyncio.run, config.DockerSpawner.pre_spawn_hook(made)).result()
    return made


def test_those_on_the_roster_and_instructors_may_log_in_and_nobody_else(load):
    config = load()
    assert config.Authenticator.allowed_users == {"ada", "grace", "prof", "ta"}
    assert "allow_all" not in config.Authenticator


def test_a_student_gets_the_students_image_and_her_own_volume_alone(load):
    made = spawner(load(), "ada", ["labs-ada", "labs-grace"])
    assert made.image.endswith(":student") and made.cmd == ["jupyterhub-singleuser"]
    assert made.volumes == {"labs-{username}": "/home/jovyan"}
    assert made.extra_host_config["cap_drop"] == ["ALL"]
    assert not any("seccomp" in option for option in made.extra_host_config["security_opt"])


def test_an_instructor_reads_the_homes_that_are_there(load):
    config = load()
    made = spawner(config, "prof", ["labs-ada", "labs-eve"])
    assert made.image.endswith(":instructor") and made.cmd == ["lab", "formgrader", "--hub"]
    assert made.volumes == {"labs-{username}": "/home/jovyan",
                            "labs-course": "/home/jovyan/course",
                            "labs-ada": {"bind": "/srv/homes/ada", "mode": "ro"}}
    assert made.extra_host_config["cap_drop"] == ["ALL"]
    (profile,) = [option for option in made.extra_host_config["security_opt"] if "=" in option]
    assert profile == "seccomp=" + (ROOT / "docker" / "seccomp-sandbox.json").read_text()
    assert not any("seccomp" in option for option in
                   spawner(config, "ada").extra_host_config["security_opt"])


def test_homes_in_a_folder_show_newcomers_by_themselves(load, tmp_path):
    homes = tmp_path / "homes"
    config = load(HOMES=str(homes))
    made = spawner(config, "ada")
    assert made.volumes == {f"{homes}/{{username}}": "/home/jovyan"}
    status = (homes / "ada").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (1000, 100, 0o700)
    assert spawner(config, "prof").volumes == {
        f"{homes}/{{username}}": "/home/jovyan", "labs-course": "/home/jovyan/course",
        str(homes): {"bind": "/srv/homes", "mode": "ro"}}
    (homes / "ada" / "kept").touch()
    spawner(config, "ada")
    assert (homes / "ada" / "kept").exists()


def test_a_folder_of_homes_that_cannot_be_is_refused(load, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="LABS_HOMES=homes is no absolute path"):
        load(HOMES="homes")
    monkeypatch.setattr("os.geteuid", lambda: 1001)
    with pytest.raises(SystemExit, match="run the hub as root"):
        load(HOMES=str(tmp_path))


def test_the_rosters_file_may_have_a_spreadsheets_mark(load):
    assert "ada" in load(roster="\ufeff" + CLASS).Authenticator.allowed_users


@pytest.mark.parametrize("roster, named", [
    (None, "LABS_ROSTER=.*students.csv is no file"), ("name\nada\n", "no column id, but name"),
    ("", "no column id, but nothing"), ("id\n../ada\n", "'../ada' cannot be a user"),
    ("id\nAda\n", "'Ada' cannot be a user"), ("id\nprof\n", "prof is a student in")])
def test_a_bad_roster_is_refused(load, roster, named):
    with pytest.raises(SystemExit, match=named):
        load(roster=roster)


def test_the_names_of_images_are_those_of_the_dockerfile(load):
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.M)
    config = load()
    for user in ("ada", "prof"):
        assert spawner(config, user).image.rpartition(":")[2] in stages


def test_kubernetes_gets_the_same(load):
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    config, user = load(), values["singleuser"]
    assert user["cmd"] == config.DockerSpawner.cmd[0]
    assert user["defaultUrl"] == config.Spawner.default_url
    assert user["memory"]["limit"] == config.DockerSpawner.mem_limit
    assert user["cpu"]["limit"] == config.DockerSpawner.cpu_limit
    assert user["storage"]["homeMountPath"] == config.DockerSpawner.volumes["labs-{username}"]
    assert values["hub"]["config"]["Authenticator"]["username_pattern"] == (
        config.Authenticator.username_pattern)


def test_kubernetes_instructors_hook_mounts_homes_to_read(monkeypatch):
    """The chart's text, run on a pod of our own making."""
    values = yaml.safe_load((FOLDER / "values.yaml").read_text())
    c = SimpleNamespace(KubeSpawner=SimpleNamespace())
    models = SimpleNamespace(V1VolumeMount=lambda **given: SimpleNamespace(**given))
    for name, module in {"kubernetes_asyncio": None, "kubernetes_asyncio.client": None,
                         "kubernetes_asyncio.client.models": models}.items():
        monkeypatch.setitem(__import__("sys").modules, name, module or SimpleNamespace())
    exec(values["hub"]["extraConfig"]["instructors"], {"c": c})
    for user, image, mounts in (("ada", "x:student-1", ["/home/jovyan"]),
                                ("prof", "x:instructor-1", ["/home/jovyan", "/srv/homes",
                                                            "/home/jovyan/course"])):
        home = SimpleNamespace(name="home", mount_path="/home/jovyan")
        notebook = SimpleNamespace(name="notebook", image="x:student-1", args=None,
                                   volume_mounts=[home])
        pod = SimpleNamespace(spec=SimpleNamespace(containers=[notebook]))
        person = SimpleNamespace(user=SimpleNamespace(name=user))
        assert c.KubeSpawner.modify_pod_hook(person, pod) is pod
        assert notebook.image == image
        assert [mount.mount_path for mount in notebook.volume_mounts] == mounts
        assert all(mount.read_only for mount in notebook.volume_mounts
                   if mount.mount_path == "/srv/homes")
