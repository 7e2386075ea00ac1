"""podman-compose on docker/compose.yml, with names and addresses of this test's own."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import image as images
from image import Engine
from labcore.errors import LabError

FILE = images.DOCKERFILE.with_name("compose.yml")
PACKAGE = "podman-compose==1.6.0"
NODES = ("slurmnode1", "slurmnode2")
SERVICES = ("controller", *NODES, "lab")
PATIENCE = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Compose:
    """One project. `change`: of compose.yml's text, as an engine with fewer rights would have it.
    """

    def __init__(self, podman: Engine, program: Path, change: Callable[[str], str] | None = None
                 ) -> None:
        self.podman, self.program, self.file = podman, program, FILE
        self.name = f"labs-test-{os.getpid()}"
        self.port = free_port()
        self.variables = {"LAB_PORT": str(self.port),
                          "CLUSTER_NETWORK": f"10.79.{os.getpid() % 250}"}
        if change:
            text = FILE.read_text()
            self.file = podman.scratch / "compose.yml"
            self.file.write_text(change(text))
            assert self.file.read_text() != text

    def __call__(self, *words: str, timeout: float = 300, **variables: str
                 ) -> subprocess.CompletedProcess[str]:
        environment = {**self.podman.environment, **self.variables, **variables,
                       "PYTHONPATH": str(self.program.parents[1])}
        return subprocess.run([self.program, "-f", self.file, "-p", self.name, *words], text=True,
                              capture_output=True, timeout=timeout, env=environment,
                              stdin=subprocess.DEVNULL, cwd=self.podman.scratch)

    def up(self, *words: str, **variables: str) -> None:
        done = self("up", "--detach", "--no-build", *words, **variables)
        if done.returncode:
            raise LabError(f"up ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    def container(self, service: str) -> str:
        return f"{self.name}_{service}_1"

    def log(self, service: str) -> str:
        done = self.podman.try_to("logs", self.container(service))
        return done.stdout + done.stderr

    def state(self, service: str, field: str) -> str:
        return self.podman("inspect", "--format", f"{{{{.State.{field}}}}}",
                           self.container(service))

    def run(self, script: str, service: str = "lab", timeout: float = 300) -> str:
        """Run it in jovyan's shell, with the cluster's commands; return its output."""
        setup = 'eval "$(lab cluster env)"; cd "$LAB_HOME"; '
        done = self.podman.try_to("exec", "--user", "1000:100", self.container(service), "bash",
                                  "-c", setup + script, timeout=timeout)
        return done.stdout + done.stderr

    def nodes(self) -> dict[str, str]:
        """Slurm's word for each."""
        words = self.run("sinfo --noheader --Node --format '%N %t'").split()
        return dict(zip(words[::2], words[1::2], strict=False))

    def wait_for(self, seen: Callable[[], bool], what: str) -> float:
        """Seconds until it was seen. Raises LabError with the logs."""
        began = time.monotonic()
        while not seen():
            if time.monotonic() - began > PATIENCE:
                logs = "\n".join(f"{name}: {self.log(name)[-1500:]}" for name in SERVICES)
                raise LabError(f"waited in vain: {what}\n{logs}")
            time.sleep(0.2)
        return time.monotonic() - began

    def idle(self) -> bool:
        return self.nodes() == dict.fromkeys(NODES, "idle")

    def answers(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            try:
                probe.connect(("127.0.0.1", self.port))
                probe.sendall(b"GET /api HTTP/1.0\r\n\r\n")
                return b"200 OK" in probe.recv(100)
            except OSError:
                return False

    def address(self) -> str:
        matches = re.findall(r"http://127\.0\.0\.1:8888/lab\?token=\w+", self.log("lab"))
        return matches[-1] if matches else ""
