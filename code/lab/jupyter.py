"""JupyterLab over the workspace, with the cluster's commands in notebooks and terminals."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from labcore.errors import LabError

LOOPBACK = "127.0.0.1"
FIRST_PORT, LAST_PORT = 8888, 8988
SECONDS_TO_START = 60
MOST_STARTS = 5


def free_port(wanted: int | None, ip: str = LOOPBACK) -> int:
    """`wanted` if given, else the first port from 8888 on that is free at `ip`. Raises LabError."""
    candidates = [wanted] if wanted else range(FIRST_PORT, LAST_PORT + 1)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
                return port
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise LabError(f"--ip {ip} is no address of this machine; nearest: "
                                   "--ip 0.0.0.0, all that it has") from error
    if wanted:
        raise LabError(f"--port {wanted} is taken; nearest free: --port {free_port(None, ip)}")
    raise LabError(f"no free port from {FIRST_PORT} to {LAST_PORT}: stop a program that listens "
                   "there, or choose another with --port")


def shell_start_file(home: Path) -> Path:
    """A bash start file: the user's own first, then the cluster's commands in front."""
    path = home / ".cluster" / "bashrc"
    path.parent.mkdir(parents=True, exist_ok=True)
    lab = Path(sys.executable).with_name("lab")
    path.write_text('[ -f "$HOME/.bashrc" ] && . "$HOME/.bashrc"\n'
                    f'eval "$({shlex.quote(str(lab))} cluster env)"\n')
    return path


INSTRUCTORS = ("formgrader", "create-assignment", "course-list")  # nbgrader's, not for students


def offline_settings(home: Path, instructor: bool = False) -> Path:
    """A configuration folder under which JupyterLab asks no server for news and updates, and shows
    students no grading."""
    folder = home / ".cluster" / "jupyter"
    path = folder / "labconfig" / "page_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    off = {"@jupyterlab/apputils-extension:announcements": True}
    off |= {f"@jupyter/nbgrader:{name}": not instructor for name in INSTRUCTORS}
    # JupyterLab would start Node.js, if there is one, to check whether it should be rebuilt.
    path.write_text(json.dumps({"disabledExtensions": off, "buildAvailable": False,
                                "buildCheck": False}))
    servers = {f"nbgrader.server_extensions.{name}": instructor
               for name in ("formgrader", "course_list")}
    (folder / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": servers}}))
    return folder


def _die_with_parent() -> None:
    """In the child: be told to stop when `lab start` is gone, whatever ended it (Linux)."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Jupyter:
    """One JupyterLab server with its own token, listening at `ip`.

    `base_url` is the URL path under which it is served behind a hub or proxy, such as "/user/x/".
    Its log and settings are in `own`, which is `home` unless several servers share the folder.
    """

    def __init__(self, home: Path, environment: dict[str, str], port: int | None,
                 ip: str = LOOPBACK, instructor: bool = False, base_url: str = "/",
                 own: Path | None = None) -> None:
        self.home, self.wanted, self.ip, self.base_url = home, port, ip, base_url
        self.own = own or home
        self.host = LOOPBACK if ip == "0.0.0.0" else ip
        self.log = self.own / ".cluster" / "jupyter.log"
        self.variables = {**os.environ, **environment,
                          "JUPYTER_CONFIG_PATH": str(offline_settings(self.own, instructor))}
        self.token = self._make_token()
        self.starts = 0
        self.asked = False
        self._start()

    def _make_token(self) -> str:
        token = secrets.token_hex(24)
        self.variables["JUPYTER_TOKEN"] = token
        return token

    def _choose_port(self) -> int:
        return free_port(self.wanted, self.ip)

    def _program(self) -> list[str]:
        return ["-m", "jupyterlab", "--no-browser", f"--ip={self.ip}", f"--port={self.port}",
                "--ServerApp.port_retries=0", f"--ServerApp.base_url={self.base_url}"]

    def _start(self) -> None:
        self.starts += 1
        self.port = self._choose_port()
        self.root = f"http://{self.host}:{self.port}/{self.base_url.strip('/')}".rstrip("/")
        shell = ["/bin/bash", "--rcfile", str(shell_start_file(self.own))]
        command = [sys.executable, *self._program(), f"--ServerApp.root_dir={self.home}",
                   f"--ServerApp.terminado_settings={{'shell_command': {shell}}}"]
        if os.geteuid() == 0:
            command.append("--allow-root")
        # A session of its own: Ctrl-C reaches `lab start` alone, which stops things in order.
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.variables, start_new_session=True, preexec_fn=_die_with_parent)

    def _lost_the_port(self) -> bool:
        """Return whether JupyterLab exited because another program took its port first."""
        if self.process.poll() is None or self.wanted or self.starts >= MOST_STARTS:
            return False
        return free_port(None, self.ip) != self.port

    @property
    def address(self) -> str:
        return f"{self.root}/lab?token={self.token}"

    def _question(self) -> urllib.request.Request:
        """Another's server, which took the port in the meantime, refuses our token."""
        return urllib.request.Request(f"{self.root}/api/status",
                                      headers={"Authorization": f"token {self.token}"})

    def wait_until_ready(self) -> None:
        """Return when it answers. Raises LabError with its last lines when it does not."""
        deadline = time.monotonic() + SECONDS_TO_START
        # A proxy that the environment names is not for this machine's own address.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            try:
                direct.open(self._question(), timeout=2).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            if self._lost_the_port():
                self._start()
            elif self.process.poll() is not None:
                break
        last = self.log.read_text(errors="replace").splitlines()[-5:]
        raise LabError(f"JupyterLab did not start; the end of {self.log}:\n  " + "\n  ".join(last))

    def ask_to_stop(self) -> None:
        """Once: a second SIGTERM would disturb the server in ending its kernels."""
        if not self.asked and self.process.poll() is None:
            self.asked = True
            self.process.terminate()

    def stop(self) -> None:
        """End the server and the kernels and terminals it started."""
        self.ask_to_stop()
        if self.process.poll() is None:
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
