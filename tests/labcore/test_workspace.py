"""The workspace: laid out once, never at the cost of what the student wrote."""

import http.server
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab import jupyter
from labcore import shipping, workspace
from labcore.errors import LabError


def test_the_paths_of_the_classic_course(tmp_path):
    shipping.make_workspace(tmp_path)
    for path in ("megatron/Megatron-LM/pretrain_gpt.py",
                 "megatron/Megatron-LM/tools/preprocess_data.py", "megatron/logs",
                 "megatron/tensorboard", "megatron/checkpoints", "code/dp_two_nodes.sh",
                 "data", "notebooks"):
        assert (tmp_path / path).exists(), path


def test_a_second_time_keeps_the_students_work(tmp_path):
    shipping.make_workspace(tmp_path)
    script = tmp_path / "code" / "dp_two_nodes.sh"
    script.write_text("mine")
    shipping.make_workspace(tmp_path)
    assert script.read_text() == "mine"


def test_a_link_that_leads_elsewhere_is_mended_and_a_folder_is_not_touched(tmp_path):
    shipping.make_workspace(tmp_path)
    link = tmp_path / "megatron" / "Megatron-LM"
    link.unlink()
    link.symlink_to("/nowhere")
    shipping.make_workspace(tmp_path)
    assert link.resolve() == workspace.CODE.resolve()
    link.unlink()
    link.mkdir()
    with pytest.raises(LabError, match=f"{link} is in the way"):
        shipping.make_workspace(tmp_path)


def test_a_workspace_that_is_not_writable():
    lab = Path(sys.executable).with_name("lab")
    done = subprocess.run([lab, "start"], env={**os.environ, "LAB_HOME": "/proc/workspace"},
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "lab: error: the workspace /proc/workspace is not writable" in done.stderr
    assert "set LAB_HOME to a folder of your own" in done.stderr


def test_a_port_that_is_taken():
    import socket

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        with pytest.raises(LabError, match=rf"--port {port} is taken; nearest free: --port \d+"):
            jupyter.free_port(port)


@pytest.mark.parametrize("port", [None, 8888])
def test_an_ip_of_another_machine(port):
    with pytest.raises(LabError, match=r"--ip 192\.0\.2\.1 is not an address of this machine"):
        jupyter.free_port(port, "192.0.2.1")


def test_anothers_server_on_our_port_is_not_taken_for_ours(tmp_path):
    class Others(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # like Jupyter: /api is for everybody
            self.send_response(200 if self.path == "/api" else 403)
            self.end_headers()

        def log_message(self, *_):
            pass

    ours = object.__new__(jupyter.Jupyter)
    with http.server.HTTPServer(("127.0.0.1", 0), Others) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ours.root, ours.token = f"http://127.0.0.1:{server.server_port}", "ours"
        ours.log, ours.wanted = tmp_path / "log", server.server_port
        ours.log.write_text("the port is already in use")
        ours.process = subprocess.Popen(["sleep", "1"])
        with pytest.raises(LabError, match="already in use"):
            ours.wait_until_ready()
        server.shutdown()


def test_no_free_port(monkeypatch):
    monkeypatch.setattr(jupyter, "LAST_PORT", jupyter.FIRST_PORT - 1)
    with pytest.raises(LabError, match="no free port from 8888"):
        jupyter.free_port(None)
