"""TensorBoard without a browser: the link, the command, the pages, traces that come late."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import zipfile
from importlib import resources
from pathlib import Path

import pytest
import torch_tb_profiler

from lab import tensorboard
from lab.cli import main
from lab.tensorboard import cli, plugin, proxy
from labcore.errors import LabError
from labcore.workspace import CHECKOUT

LAB = Path(sys.executable).with_name("lab")
SERVER = {"base_url": "/user/x/", "url": "http://127.0.0.1:8888/user/x/"}


@pytest.fixture
def behind(monkeypatch, tmp_path):
    """Say which Jupyter server runs as process `pid`."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    other = {"base_url": "/", "url": "http://127.0.0.1:1/"}
    (tmp_path / "jpserver-1073741824.json").write_text(json.dumps(other))

    def set_server(pid, **server):
        (tmp_path / f"jpserver-{pid}.json").write_text(json.dumps({**SERVER, **server}))

    return set_server


def test_the_link_has_the_base_path_of_the_server_that_started_the_kernel(behind):
    behind(os.getppid())
    assert 'href="/user/x/tensorboard/" target="_blank"' in tensorboard.link()._repr_html_()
    assert "/user/x/tensorboard/#pytorch_profiler" in tensorboard.link("profiler")._repr_html_()
    assert repr(tensorboard.link()) == "Open TensorBoard: http://127.0.0.1:8888/user/x/tensorboard/"


def test_a_kernel_whose_parent_is_a_launcher_knows_its_server_too(behind, monkeypatch):
    behind(4711, base_url="/", url="http://127.0.0.1:8888/")
    monkeypatch.setenv("JPY_PARENT_PID", "4711")
    assert 'href="/tensorboard/"' in tensorboard.link()._repr_html_()


def test_without_a_server_the_link_says_what_to_type(behind):
    behind(1 << 29)
    assert tensorboard.link()._repr_html_() is None
    assert "lab tensorboard" in repr(tensorboard.link())
    assert "PYTORCH_PROFILER" in repr(tensorboard.link("profiler"))


def test_a_tab_that_there_is_not():
    with pytest.raises(LabError, match=r"'profile'.*'scalars', 'profiler'"):
        tensorboard.link("profile")


def test_jupyter_knows_the_server_and_fills_in_its_base_path():
    from jupyter_server_proxy.config import get_entrypoint_server_processes

    (ours,) = [one for one in get_entrypoint_server_processes() if one.name == proxy.NAME]
    assert ours.absolute_url and ours.launcher_entry.title == "TensorBoard"
    assert Path(ours.launcher_entry.icon_path).read_text().startswith("<svg")
    assert ours.command[-4:] == ["--port", "{port}", "--path-prefix", "{base_url}tensorboard"]


def test_the_lab_command_does_not_wait_for_tensorboard():
    code = ("import sys; from lab.cli import build_parser; build_parser(); "
            "print([name for name in ('torch', 'tensorboard', 'plotly') if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("given, kept", [("/x/", "/x"), ("x/y", "/x/y"), ("/", ""), ("", "")])
def test_a_path_prefix_in_any_spelling(given, kept):
    assert cli.path_prefix(given) == kept


@pytest.mark.parametrize("flags, message", [
    ("--port 80", "80 is not a port from 1024 to 65535; nearest: 6006"),
    ("--port x", "x is not a port"),
    ("--path-prefix a//b", "'a//b' is not a path; nearest: /tensorboard"),
    ("--logdir nowhere", "--logdir nowhere is not a folder; nearest: "),
])
def test_bad_flags(flags, message, capsys):
    try:
        code = main(["tensorboard", *flags.split()])
    except SystemExit as ended:  # argparse's
        code = ended.code
    assert code in (1, 2)
    assert message in capsys.readouterr().err


def test_another_version_of_the_profiler_s_pages_is_refused(tmp_path):
    static = resources.files(torch_tb_profiler) / "static"
    shutil.copytree(str(static), tmp_path, dirs_exist_ok=True)
    plugin.pages(tmp_path)
    for name, gone in (("index.html", "gstatic.com/charts"), ("trace_embedding.html", "cdnjs"),
                       ("trace_embedding.html", 'rel="import"')):
        page = tmp_path / name
        before = page.read_text()
        page.write_text(before.replace(gone, "elsewhere"))
        with pytest.raises(LabError, match=f"{name} does not contain .*torch-tb-profiler==0.4.3"):
            plugin.pages(tmp_path)
        page.write_text(before)


def test_no_page_of_the_tab_loads_a_script_from_elsewhere():
    for name, content in plugin.pages().items():
        if name.endswith(".html"):
            assert b'src="http' not in content and b'rel="import"' not in content, name


def trace(path, name):
    """The least that the profiler's tab takes for a trace."""
    path.mkdir(parents=True, exist_ok=True)
    events = [{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1,
               "ts": 1, "dur": 100, "args": {"External id": 1}},
              {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 10,
               "dur": 50, "args": {"External id": 2, "Input Dims": []}}]
    (path / f"{name}.1700000000000000000.pt.trace.json").write_text(json.dumps(
        {"schemaVersion": 1, "traceEvents": events}))


class Served:
    def __init__(self, *flags):
        self.process = subprocess.Popen([LAB, "tensorboard", *flags], text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lines = (line.strip() for line in self.process.stdout)
        self.address = next((line for line in lines if line.startswith("http")), None)

    def get(self, path):
        with urllib.request.urlopen(self.address + path, timeout=30) as answer:
            return answer.read()

    def profiler(self, path):
        return json.loads(self.get(f"data/plugin/pytorch_profiler/{path}"))

    def until(self, path, wanted):
        deadline = time.monotonic() + 60
        while (got := self.profiler(path)) != wanted:
            assert time.monotonic() < deadline, got
            time.sleep(0.2)


@pytest.fixture(scope="module")
def logdir(tmp_path_factory):
    return tmp_path_factory.mktemp("logdir")


@pytest.fixture(scope="module")
def served(logdir):
    one = Served("--logdir", str(logdir), "--path-prefix", "p")
    yield one
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(30) == 0


@pytest.mark.slow
def test_traces_that_come_late_are_seen_and_those_that_go_are_forgotten(served, logdir):
    run = logdir / "run_a"
    trace(run, "run_a_gpu0")
    served.until("runs", {"runs": ["run_a"], "loading": False})
    workers = "workers?run=run_a&view=Overview"
    served.until(workers, ["run_a_gpu0"])
    trace(run, "run_a_gpu1")
    served.until(workers, ["run_a_gpu0", "run_a_gpu1"])
    shutil.rmtree(run)
    served.until("runs", {"runs": [], "loading": False})


@pytest.mark.slow
def test_the_page_asks_for_its_fonts_below_its_prefix(served):
    assert served.address.endswith("/p/")
    assert b"url(/font-roboto" not in served.get("") and b"url(font-roboto/" in served.get("")


@pytest.mark.slow
def test_a_port_in_use_is_named(served, tmp_path):
    port = served.address.split(":")[2].split("/")[0]
    done = subprocess.run([LAB, "tensorboard", "--logdir", tmp_path, "--port", port],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"lab: error: --port {port} is taken; leave --port out" in done.stderr


@pytest.mark.slow
def test_an_installed_package_has_our_scripts(tmp_path):
    source = tmp_path / "source"  # building leaves things behind
    shutil.copytree(CHECKOUT / "code", source / "code",
                    ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for path in (*CHECKOUT.glob("LICENSE*"), CHECKOUT / "README.md", CHECKOUT / "pyproject.toml"):
        shutil.copy(path, source)
    subprocess.run([sys.executable, "-c", "import sys; from setuptools import build_meta; "
                    "build_meta.build_wheel(sys.argv[1])", tmp_path], cwd=source, check=True)
    names = zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist()
    for name in (*plugin.SCRIPTS, "icon.svg"):
        assert f"lab/tensorboard/{name}" in names
