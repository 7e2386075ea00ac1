"""JupyterLab's start."""

import json
import os
import socket
import urllib.error
import urllib.request

import pytest

from lab import jupyter


@pytest.mark.slow
def test_a_students_server_leaves_a_taken_port_starts_no_node_and_has_no_formgrader(
        tmp_path, monkeypatch):
    started = tmp_path / "started"
    for name in ("node", "npm"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {started}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with socket.socket() as another:
        another.bind(("127.0.0.1", 0))
        another.listen()
        taken, look = another.getsockname()[1], jupyter.free_port
        result = iter([taken, taken])  # it seems free when we look again
        monkeypatch.setattr(jupyter, "free_port",
                            lambda wanted, ip="127.0.0.1": next(result, None) or look(wanted, ip))
        server = jupyter.Jupyter(tmp_path, {}, None)
        try:
            assert server.port == taken
            server.wait_until_ready()
            assert server.port != taken and f":{server.port}/" in server.address
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with pytest.raises(urllib.error.HTTPError, match="404"):
                direct.open(f"{server.root}/formgrader?token={server.token}")
            # Lines of code that are longer than the window are wrapped.
            path = "lab/api/settings/@jupyterlab/notebook-extension:tracker"
            tracker = json.load(direct.open(f"{server.root}/{path}?token={server.token}"))
            assert tracker["schema"]["properties"]["codeCellConfig"]["default"]["lineWrap"] is True
            style = direct.open(f"{server.root}/custom/custom.css").read().decode()
            assert style == jupyter.STYLE
            assert "/custom/custom.css" in direct.open(server.address).read().decode()
            assert not started.exists()
        finally:
            server.stop()


@pytest.mark.parametrize("instructor", [False, True])
def test_nobody_has_the_validate_button(tmp_path, instructor):
    """It reports success while a notebook's jobs run, and runs cells that grading does not."""
    folder = jupyter.offline_settings(tmp_path, instructor)
    page = json.loads((folder / "labconfig" / "page_config.json").read_text())
    server = json.loads((folder / "jupyter_server_config.json").read_text())
    assert page["disabledExtensions"]["@jupyter/nbgrader:validate-assignment"] is True
    extensions = server["ServerApp"]["jpserver_extensions"]
    assert extensions["nbgrader.server_extensions.validate_assignment"] is False
