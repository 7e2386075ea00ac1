"""The configuration, the folders and the environment, without starting anything."""

import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from labcore.errors import LabError
from slurmbox import (
    bundle,
    cli,
    clients,
    config,
    control,
    dli,
    install,
    loopback,
    profile,
    site_clients,
)
from slurmbox.layout import Layout

FAKE = install.Slurm(folders=("/nonexistent",))


@pytest.fixture
def layout(tmp_path):
    made = Layout(tmp_path / "my work")
    made.prepare()
    made.prepare_run()
    yield made
    made.remove_run()


def conf(layout, place, **options):
    return config.slurm_conf(layout, profile.make(**options), place, FAKE)


def test_a_job_on_one_cpu_and_a_job_on_all_fit_without_naming_memory():
    per_cpu = config.memory_per_cpu()
    assert 4096 <= per_cpu <= 8192  # two PyTorch ranks and their launcher live on one CPU


def test_slurm_conf_of_a_mixed_cluster(layout):
    text = conf(layout, config.ClusterNetwork("namespaces"), nodes=2, gpus="a100:4,a10:4")
    assert "NodeName=slurmnode1 NodeAddr=10.77.0.11 Port=6818 CPUs=32" in text
    assert "Gres=gpu:a100:4 Feature=a100" in text
    assert "PartitionName=slurmpar Nodes=slurmnode1,slurmnode2 Default=YES" in text
    assert "PartitionName=a10 Nodes=slurmnode2 MaxTime" in text
    assert "my work" not in text  # Slurm's own files never see the blank


def test_cpus_and_memory_of_the_nodes_are_as_given(layout):
    text = conf(layout, config.ClusterNetwork("namespaces"), cpus=64, memory=96)
    assert text.count("CPUs=64 Boards=1 SocketsPerBoard=1 CoresPerSocket=64") == 2
    assert text.count("RealMemory=98304 ") == 2
    assert "DefMemPerCPU=1536\n" in text  # a job on all CPUs fits
    text = conf(layout, config.ClusterNetwork("namespaces"), cpus=16)
    assert f"RealMemory={16 * config.memory_per_cpu()} " in text


def test_plugins_without_their_library_are_left_out(layout, tmp_path):
    folder = tmp_path / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    folder.mkdir(parents=True)
    for name, text in (("mpi_none", ""), ("mpi_pmix_v4", "\0libpmix.so.2000\0"),
                       ("mpi_pmix_v9", "no library's name")):
        (folder / f"{name}.so").write_text(text)
    slurm = install.Slurm(("/nonexistent",), prefix=tmp_path)
    assert slurm.unusable_plugins == {"mpi_pmix_v4.so"}
    plugins = layout.state / "plugins"
    plugins.symlink_to(folder)  # from an older version
    config.write_plugins(plugins, slurm)
    (folder / "mpi_none.so").unlink()
    config.write_plugins(plugins, slurm)
    assert [path.name for path in plugins.iterdir()] == ["mpi_pmix_v9.so"]
    assert (folder / "mpi_pmix_v4.so").exists()


def test_slurm_conf_of_loopback_has_a_port_per_node(layout):
    text = conf(layout, config.ClusterNetwork("loopback", 17001, 17002, (17003, 17004)))
    assert "NodeName=slurmnode2 NodeHostname=localhost NodeAddr=127.0.0.1 Port=17004" in text
    assert "NoInAddrAny" in text


def test_the_runtime_folder_is_short_private_and_follows_its_workspace(layout, tmp_path):
    about = os.stat(layout.run)
    assert stat.S_IMODE(about.st_mode) == 0o700 and about.st_uid == os.getuid()
    assert len(str(layout.control_socket)) < 60
    copy = Layout(tmp_path / "copy")
    subprocess.run(["cp", "-a", layout.home, copy.home], check=True)
    copy.prepare_run()
    assert copy.run != layout.run
    copy.remove_run()


def test_a_runtime_folder_open_to_others_is_not_used(layout):
    old = layout.run
    old.chmod(0o777)
    layout.prepare_run()
    assert layout.run != old
    (old / "cluster").unlink()
    old.rmdir()


def test_env_can_be_evaluated_twice_by_sh_and_bash(layout):
    clients.write_stubs(layout)
    exports = clients.exports(layout.home)
    for shell in ("sh", "bash"):
        script = f'{exports}\nonce=$PATH\n{exports}\n[ "$once" = "$PATH" ] && command -v sinfo'
        done = subprocess.run([shell, "-c", script], capture_output=True, text=True)
        assert done.stdout.strip() == str(layout.bin / "sinfo")


def test_commands_say_that_the_cluster_is_not_running(layout):
    clients.write_stubs(layout)
    done = subprocess.run(["sinfo"], env=clients.full_environment(layout.home),
                          capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "sinfo: error: the cluster is not running: lab cluster up\n"


def test_site_mode_has_commands_of_its_own_and_refuses_up(layout, monkeypatch, tmp_path):
    layout.site.touch()
    for name in site_clients.PREFIXES:
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "SLURM_CONF" not in clients.environment(layout.home)
    folders = clients.environment(layout.home)["PATH"].split(":")
    assert folders[0] == str(layout.site_bin) and str(layout.bin) not in folders
    with pytest.raises(LabError, match="lab cluster use local"):
        control.up(layout.home, control.UpOptions())
    assert control.ensure_up(layout.home) is False
    with pytest.raises(LabError, match="does not manage"):
        cli._require_running(layout)


def test_use_site_needs_a_site(layout, monkeypatch):
    monkeypatch.setenv("LAB_HOME", str(layout.home))
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match="no sbatch on PATH"):
        cli.run_use(type("Arguments", (), {"which": "site"}))


@pytest.mark.parametrize("character", [":", "\n"])
def test_a_path_that_cannot_be_part_of_path_is_refused(tmp_path, character):
    with pytest.raises(LabError, match="which PATH cannot contain"):
        Layout(tmp_path / f"a{character}b").prepare()


def test_a_workspace_that_cannot_be_written_is_named():
    with pytest.raises(LabError, match="/proc/workspace is not writable"):
        Layout(Path("/proc/workspace")).prepare()


def test_no_free_port_is_said(monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(LabError, match=f"needs 1 free TCP ports.* between {port} and {port}"):
            loopback.choose_ports(1, port, port)


def test_dli_link(tmp_path):
    home, other, link = tmp_path / "home", tmp_path / "other", tmp_path / "dli"
    home.mkdir()
    assert dli.link_dli(home, link) is None and os.readlink(link) == str(home)
    assert dli.link_dli(home, link) is None
    assert "stays as it is" in dli.link_dli(other, link)
    home.rmdir()
    other.mkdir()
    assert dli.link_dli(other, link) is None and os.readlink(link) == str(other)
    dli.unlink_dli(home, link)
    assert link.is_symlink()  # somebody else's
    dli.unlink_dli(other, link)
    assert not link.is_symlink()
    link.mkdir()
    assert "stays as it is" in dli.link_dli(other, link)
    dli.unlink_dli(other, link)
    assert link.is_dir()


def test_without_slurm_the_command_to_install_it_is_named(monkeypatch):
    monkeypatch.setattr(install, "locate", lambda: None)
    monkeypatch.setattr(install.shutil, "which", lambda *_, **__: None)
    with pytest.raises(LabError, match="the container"):
        install.ensure_slurm()
    monkeypatch.setattr(install.sys, "platform", "darwin")
    with pytest.raises(LabError, match="does not run on darwin"):
        install.ensure_slurm()


def test_an_interrupted_unpacking_starts_over(tmp_path, monkeypatch):
    def fail(folder, packages, say):
        (folder / "half").touch()
        raise KeyboardInterrupt

    prefix = tmp_path / ".slurm"
    monkeypatch.setattr(bundle, "_fill", fail)
    with pytest.raises(KeyboardInterrupt):
        bundle.unpack(prefix, (), print)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(bundle, "_fill", lambda folder, *_: (folder / "whole").touch())
    bundle.unpack(prefix, (), print)
    assert (prefix / "whole").exists()
