"""The server that a JupyterHub starts: its address, and its command line."""

import argparse
import importlib.util

import pytest

from lab import hub
from lab.start import add_parser
from labcore.errors import LabError
from tests.ports import free_port


@pytest.mark.parametrize(("url", "place"), [
    ("http://0.0.0.0:8888/user/ada/", ("0.0.0.0", 8888, "/user/ada/")),
    ("http://127.0.0.1:40001/user/ada/", ("127.0.0.1", 40001, "/user/ada/")),
    ("http://[::]:8888/user/ada/", ("::", 8888, "/user/ada/"))])
def test_the_hub_says_where(url, place):
    assert hub.address_from({hub.URL: url, hub.PREFIX: "/user/ada/"}) == place


@pytest.mark.parametrize("url", ["", "http://0.0.0.0/user/ada/", "https://0.0.0.0:8888/", "ada",
                                 "http://0.0.0.0:port/"])
def test_without_a_hub_it_is_refused(url):
    with pytest.raises(LabError, match=f"{hub.URL} is '{url}'.*leave --hub out"):
        hub.address_from({hub.URL: url})


def test_the_hubs_own_words_are_passed_on():
    top = argparse.ArgumentParser()
    add_parser(top.add_subparsers())
    words = ["--ip=0.0.0.0", "--port", "8888", "--debug"]
    assert top.parse_args(["start", "--hub", *words]).hub == words
    assert top.parse_args(["start", "--hub"]).hub == []
    assert top.parse_args(["start"]).hub is None


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub's server whose program is a web server that knows one path and notes its words."""
    (tmp_path / ".cluster").mkdir()
    port = free_port()
    program = tmp_path / "program.py"
    program.write_text(f"""
import http.server, os, sys
open("words", "w").write(" ".join([*sys.argv[1:], os.environ.get("JUPYTER_TOKEN", "no token")]))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/user/ada/api" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
""")
    whole = hub.HubServer._program
    monkeypatch.setattr(hub.HubServer, "_program",
                        lambda self: [str(program), *whole(self)[2:]])
    place = hub.HubAddress("localhost", port, "/user/ada/")
    made = hub.HubServer(tmp_path, {"SLURM_CONF": "x"}, place, ["--debug"])
    yield made
    made.stop()


def test_it_is_ready_when_it_answers_below_the_hubs_path(server):
    server.wait_until_ready()
    words = (server.home / "words").read_text()
    assert words.startswith(f"--debug --ServerApp.root_dir={server.home} ")
    assert words.endswith("no token") and server.token == ""
    assert "user/ada/lab" in server.address and "token" not in server.address


def test_the_environment_has_the_hubs_server():
    assert importlib.util.find_spec("jupyterhub.singleuser")
