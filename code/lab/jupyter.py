"""Run JupyterLab in the workspace, with the cluster's commands in notebooks and terminals."""

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
START_TIMEOUT = 60  # seconds
MAX_STARTS = 5


def free_port(wanted: int | None, ip: str = LOOPBACK) -> int:
    """Return a free port.

    Args:
        wanted: the only port to try; None for the first free one from FIRST_PORT on.
        ip: the address to listen at.

    Raises:
        LabError: the port is taken, no port is free, or the address is not this machine's.
    """
    candidates = [wanted] if wanted else range(FIRST_PORT, LAST_PORT + 1)
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ip, port))
                return port
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    raise LabError(f"--ip {ip} is not an address of this machine; nearest: "
                                   "--ip 0.0.0.0, which means all its addresses") from error
    if wanted:
        raise LabError(f"--port {wanted} is taken; nearest free: --port {free_port(None, ip)}")
    raise LabError(f"no free port from {FIRST_PORT} to {LAST_PORT}: stop a program that listens "
                   "on one of them, or choose another port with --port")


def shell_start_file(home: Path) -> Path:
    """Write a start file for bash: the user's own file, then the cluster's commands on PATH."""
    path = home / ".cluster" / "bashrc"
    path.parent.mkdir(parents=True, exist_ok=True)
    lab = Path(sys.executable).with_name("lab")
    path.write_text('[ -f "$HOME/.bashrc" ] && . "$HOME/.bashrc"\n'
                    f'eval "$({shlex.quote(str(lab))} cluster env)"\n')
    return path


# JupyterLab starts Node.js twice, if it is installed, to ask yarn for a registry that we never use.
PROGRAM = """from jupyterlab import commands
commands._yarn_config = lambda logger: {"yarn config": {}, "npm config": {}}
from jupyterlab.labapp import main
main()
"""
INSTRUCTORS = ("formgrader", "create-assignment", "course-list")  # nbgrader's, for instructors only


# A line of code may be too long for a window of 1280 pixels, so lines are wrapped.
SETTINGS = {"@jupyterlab/notebook-extension:tracker": {"codeCellConfig": {"lineWrap": True}}}

# JupyterLab breaks the lines of outputs anywhere, even within words that fit on the next line.
STYLE = """.jp-OutputArea .jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }
"""


def offline_settings(home: Path, instructor: bool = False) -> Path:
    """Write a configuration folder for JupyterLab, and return it.

    JupyterLab then asks no server for news or updates, hides grading from students, and wraps long
    lines.

    Args:
        home: the workspace.
        instructor: enable nbgrader's extensions for instructors.
    """
    folder = home / ".cluster" / "jupyter"
    path = folder / "labconfig" / "page_config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    off = {"@jupyterlab/apputils-extension:announcements": True}
    # nbgrader's Validate button runs the notebook as it is, own cells and all, and reports success
    # while its jobs still run. `lab validate` runs what is graded.
    off["@jupyter/nbgrader:validate-assignment"] = True
    off |= {f"@jupyter/nbgrader:{name}": not instructor for name in INSTRUCTORS}
    # JupyterLab would start Node.js, if there is one, to check whether it should be rebuilt.
    path.write_text(json.dumps({"disabledExtensions": off, "buildAvailable": False,
                                "buildCheck": False}))
    servers = {f"nbgrader.server_extensions.{name}": instructor
               for name in ("formgrader", "course_list")}
    servers["nbgrader.server_extensions.validate_assignment"] = False
    (path.parent / "default_setting_overrides.json").write_text(json.dumps(SETTINGS))
    style = folder / "custom" / "custom.css"
    style.parent.mkdir(exist_ok=True)
    style.write_text(STYLE)
    # Where it looks for language servers that need Node.js; by default, it asks npm, too.
    roots = [str(Path(sys.prefix, "lib")), sys.prefix]
    (folder / "jupyter_server_config.json").write_text(json.dumps({
        "ServerApp": {"jpserver_extensions": servers,
                      "tornado_settings": {"static_custom_path": [str(style.parent)]}},
        "LabApp": {"custom_css": True},
        "LanguageServerManager": {"node_roots": roots}}))
    return folder


def _stop_with_parent() -> None:
    """Receive SIGTERM when `lab start` ends, whatever ended it; called in the child."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Jupyter:
    """A JupyterLab server with its own token."""

    def __init__(self, home: Path, environment: dict[str, str], port: int | None,
                 ip: str = LOOPBACK, instructor: bool = False, base_url: str = "/",
                 own: Path | None = None) -> None:
        """Start the server.

        Args:
            home: the folder that it shows.
            environment: further environment variables.
            port: its port; None for the first free one.
            ip: the address at which it listens.
            instructor: enable nbgrader's extensions for instructors.
            base_url: the URL path under which a hub or proxy serves it, such as "/user/x/".
            own: the folder for its log and settings, if several servers share `home`.
        """
        self.home, self.wanted, self.ip, self.base_url = home, port, ip, base_url
        self.own = own or home
        self.host = LOOPBACK if ip == "0.0.0.0" else ip
        self.log = self.own / ".cluster" / "jupyter.log"
        self.variables = {**os.environ, **environment,
                          "JUPYTER_CONFIG_PATH": str(offline_settings(self.own, instructor))}
        self.token = self._make_token()
        self.starts = 0
        self.is_stopping = False
        self._start()

    def _make_token(self) -> str:
        token = secrets.token_hex(24)
        self.variables["JUPYTER_TOKEN"] = token
        return token

    def _choose_port(self) -> int:
        return free_port(self.wanted, self.ip)

    def _program(self) -> list[str]:
        return ["-c", PROGRAM, "--no-browser", f"--ip={self.ip}", f"--port={self.port}",
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
        # Its own session, so that Ctrl-C reaches only `lab start`, which stops things in order.
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.variables, start_new_session=True, preexec_fn=_stop_with_parent)

    def _lost_the_port(self) -> bool:
        """Return whether JupyterLab, which has exited, found its port taken by another program.

        That program may have ended since.
        """
        if self.wanted or self.starts >= MAX_STARTS:
            return False
        said = f"port {self.port} is not available" in self.log.read_text(errors="replace")
        return said or free_port(None, self.ip) != self.port

    @property
    def address(self) -> str:
        return f"{self.root}/lab?token={self.token}"

    def _probe(self) -> urllib.request.Request:
        """Return a request that only this server accepts, not another one that took its port."""
        return urllib.request.Request(f"{self.root}/api/status",
                                      headers={"Authorization": f"token {self.token}"})

    def wait_until_ready(self) -> None:
        """Wait until the server responds. Raises LabError with the end of its log if it fails."""
        deadline = time.monotonic() + START_TIMEOUT
        # The environment's proxy must not be used for this machine's own address.
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while time.monotonic() < deadline:
            try:
                direct.open(self._probe(), timeout=2).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.1)
            if self.process.poll() is None:
                continue
            if not self._lost_the_port():
                break
            self._start()
        last = self.log.read_text(errors="replace").splitlines()[-5:]
        raise LabError(f"JupyterLab did not start; the end of {self.log}:\n  " + "\n  ".join(last))

    def ask_to_stop(self) -> None:
        """Send SIGTERM once, because a second one would interrupt the server's cleanup."""
        if not self.is_stopping and self.process.poll() is None:
            self.is_stopping = True
            self.process.terminate()

    def stop(self) -> None:
        """Stop the server, with the kernels and terminals that it started."""
        self.ask_to_stop()
        if self.process.poll() is None:
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
