"""A JupyterHub with DockerSpawner over podman's Docker socket, for tests: docker/jupyterhub/."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import BrowserContext, Page

import image as images
from image import Engine
from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from tests.ports import free_port

CONFIG = CHECKOUT / "docker" / "jupyterhub" / "jupyterhub_config.py"
# DockerSpawner's own dependencies; jupyterhub is in the environment.
PACKAGES = ("dockerspawner==14.0.0", "docker==7.2.0", "escapism==1.1.0")
PROXY = "configurable-http-proxy@5.3.0"
PASSWORD = "of-this-test-alone"
SECONDS = 180


class Hub:
    """A running hub and what it needs; `stop` ends all of it."""

    def __init__(self, podman: Engine, folder: Path, roster: str, instructors: str) -> None:
        self.podman, self.folder = podman, folder
        self.name = f"labs-test-{os.getpid()}"
        users = [line.split(",")[0] for line in roster.splitlines()[1:]]
        self.volumes = {f"labs-{user}" for user in [*users, *instructors.split(), "course"]}
        self.root = f"http://127.0.0.1:{free_port()}"
        self.socket = folder / "podman.sock"
        self.stack = contextlib.ExitStack()
        (folder / "students.csv").write_text(roster)
        self.environment = {
            **podman.environment, "PYTHONPATH": str(folder / "python"),
            "PATH": f"{folder}/node_modules/.bin:{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{self.socket}", "LABS_NETWORK": self.name,
            "LABS_IMAGE": f"localhost/{images.NAME}", "LABS_ROSTER": str(folder / "students.csv"),
            "LABS_INSTRUCTORS": instructors, "LABS_BIND_URL": self.root,
            "LABS_SECCOMP": str(CHECKOUT / "docker" / "seccomp-sandbox.json")}
        self.log = folder / "hub.log"

    def start(self) -> None:
        there = self.volumes & set(self.podman("volume", "ls", "--quiet").split())
        if there:  # another hub's, with people's work
            raise LabError(f"there is a volume {min(there)} already, and this test would remove "
                           f"it: podman volume rm {min(there)}, if nobody needs it")
        with self.stack:
            self._install()
            self._network()
            self._run(["podman", "system", "service", "--time", "0", f"unix://{self.socket}"],
                      self.podman.environment)
            self._wait(self.socket.exists)
            self._run([sys.executable, "-m", "jupyterhub", "-f", str(CONFIG),
                       f"--JupyterHub.hub_port={free_port()}",
                       f"--ConfigurableHTTPProxy.api_url=http://127.0.0.1:{free_port()}",
                       "--JupyterHub.authenticator_class=dummy",
                       f"--DockerSpawner.prefix={self.name}",
                       f"--DummyAuthenticator.password={PASSWORD}"], self.environment)
            self._wait(self._answers)
            self.stack = self.stack.pop_all()

    def _install(self) -> None:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
               str(self.folder / "python"), *PACKAGES]
        npm = ["npm", "install", "--silent", "--prefix", str(self.folder), PROXY]
        if not shutil.which("npm"):
            raise LabError("the hub's proxy is installed with npm: apt-get install npm")
        for command in (pip, npm):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")

    def _network(self) -> None:
        """With a container on it: before, podman gives this machine no address in a network."""
        self.podman("network", "create", self.name)
        self.stack.callback(self.podman, "network", "rm", "--force", self.name)
        self.podman("run", "--detach", "--name", self.name, "--network", self.name,
                    "--entrypoint", "sleep", images.tag("student"), "infinity")
        self.stack.callback(self.podman, "rm", "--force", "--time", "0", self.name)
        self.stack.callback(self._clear)

    def _clear(self) -> None:
        """The users' containers and volumes."""
        for name in self.podman("ps", "--all", "--format", "{{.Names}}").split():
            if name.startswith(f"{self.name}-"):
                self.podman("rm", "--force", name)
        for name in self.podman("volume", "ls", "--quiet").split():
            if name in self.volumes:
                self.podman("volume", "rm", "--force", name)

    def _run(self, command: list[str], environment: dict[str, str]) -> None:
        with self.log.open("ab") as log:
            child = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log,
                                     stderr=log, stdin=subprocess.DEVNULL)

        def end() -> None:
            child.terminate()
            child.wait(60)

        self.stack.callback(end)

    def _wait(self, done) -> None:
        deadline = time.monotonic() + 60
        while not done():
            if time.monotonic() > deadline:
                raise LabError(f"the hub does not come up:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            return direct.open(f"{self.root}/hub/login", timeout=5).status == 200
        except (urllib.error.URLError, OSError):
            return False

    def log_in(self, context: BrowserContext, user: str) -> Page:
        """A page that shows the user's JupyterLab."""
        page = context.new_page()
        page.goto(f"{self.root}/hub/login")
        page.fill("#username_input", user)
        page.fill("#password_input", PASSWORD)
        page.click("#login_submit")
        page.wait_for_url(re.compile(f"{self.root}/user/{user}/lab"), timeout=SECONDS * 1000)
        page.locator("#jp-main-dock-panel").wait_for(timeout=SECONDS * 1000)
        return page

    def container(self, user: str) -> str:
        return f"{self.name}-{user}"

    def inside(self, user: str, script: str, timeout: float = 300
               ) -> subprocess.CompletedProcess[str]:
        """In the user's container, as he would in a terminal."""
        return self.podman.try_to("exec", self.container(user), "bash", "-c", script,
                                  timeout=timeout)


@contextlib.contextmanager
def running(podman: Engine, folder: Path, roster: str, instructors: str) -> Iterator[Hub]:
    hub = Hub(podman, folder, roster, instructors)
    hub.start()
    with hub.stack:
        yield hub
