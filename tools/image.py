"""The images of the container, built: `make image`, and what `make test-image` looks at.

python tools/image.py [student|instructor ..]     with podman or docker, whichever is there
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from labcore.errors import LabError
from labcore.workspace import CHECKOUT

DOCKERFILE = CHECKOUT / "docker" / "Dockerfile"
NAME = "large-scale-training-labs"  # its tags are the targets
TARGETS = ("student", "instructor")
LOCAL_BASE = f"localhost/{NAME}-base"
PROGRAMS = ("podman", "buildah", "runc", "slirp4netns")
PACKAGES = (*PROGRAMS, "mmdebstrap", "netavark", "iptables", "uidmap")
PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert",
               "proxy", "timeout")


def tag(target: str) -> str:
    return f"{NAME}:{target}"


def ensure_podman() -> None:
    """Install what is missing where root may; else raise LabError that says what to install."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        install(missing)


def install(missing: list[str]) -> None:
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if os.getuid() or shutil.which("apt-get") is None:
        raise LabError(f"{', '.join(missing)} not installed, so no image can be built: "
                       f"sudo {' '.join(command)}")
    for words in (["apt-get", "update"], command):
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")


class Engine:
    """podman or docker; podman with a configuration of our own, the machine's is not touched."""

    def __init__(self, scratch: Path, program: str = "podman") -> None:
        self.scratch, self.program = scratch, program
        self.environment = dict(os.environ)
        if program == "podman" and os.getuid() == 0 and not Path("/run/systemd/system").is_dir():
            path = scratch / "containers.conf"
            path.write_text(self._without_systemd())
            self.environment["CONTAINERS_CONF"] = str(path)

    @staticmethod
    def _without_systemd() -> str:
        """Inside another container: nobody to make cgroups, and limits that must not be raised."""
        unified = Path("/sys/fs/cgroup/cgroup.controllers").exists()
        return ('[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=20000:20000"]\n'
                '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
                + ("" if unified else 'runtime = "runc"\n'))  # crun wants cgroups of version 2

    def try_to(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *words], text=True, capture_output=True,
                              timeout=timeout, env=self.environment, stdin=subprocess.DEVNULL,
                              cwd=self.scratch)

    def __call__(self, *words: str, timeout: float = 120) -> str:
        """Return its output. Raises LabError with its last lines if it fails."""
        done = self.try_to(*words, timeout=timeout)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise LabError(f"{self.program} {' '.join(words)} ended with {done.returncode}:\n"
                           f"{tail}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        return self.try_to("image", "inspect", image).returncode == 0

    def litter(self) -> set[str]:
        """Containers, networks, volumes and nameless images, to compare before and after."""
        listed = {"container": ("ps", "-aq", "--no-trunc"), "network": ("network", "ls", "-q"),
                  "volume": ("volume", "ls", "-q"),
                  "image": ("images", "-q", "--no-trunc", "--filter", "dangling=true")}
        return {f"{kind} {name}" for kind, words in listed.items() for name in self(*words).split()}


def choose_engine(scratch: Path) -> Engine:
    """podman if it is there, else docker if it works; IMAGE_ENGINE insists on one."""
    choice = os.environ.get("IMAGE_ENGINE", "auto")
    if choice not in ("auto", "podman", "docker"):
        raise LabError(f"IMAGE_ENGINE={choice} is not known; podman, docker or auto (either)")
    if choice != "podman" and (choice == "docker" or not shutil.which("podman")):
        docker = Engine(scratch, "docker")
        works = shutil.which("docker") and docker.try_to("info").returncode == 0
        if works or choice == "docker":
            if not works:
                raise LabError("IMAGE_ENGINE=docker, but `docker info` fails: is its daemon there?")
            return docker
    ensure_podman()
    return Engine(scratch)


def named_base() -> str:
    """The base that the Dockerfile names."""
    found = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.M)
    if not found:
        raise LabError(f"{DOCKERFILE} has no line ARG BASE=...: the base is named there")
    return found.group(1)


def base_image(engine: Engine, say: Callable[[str], None]) -> str:
    """The named base from its registry or made here; IMAGE_BASE=registry|local insists on one."""
    choice = os.environ.get("IMAGE_BASE", "auto")
    if choice not in ("auto", "registry", "local"):
        raise LabError(f"IMAGE_BASE={choice} is not known; registry, local or auto (either)")
    name = named_base()
    if choice != "local":
        pulled = engine.try_to("pull", name, timeout=600)
        if pulled.returncode == 0:
            say(f"base: {name}, from its registry")
            return name
        if choice == "registry":
            raise LabError(f"{name} cannot be pulled: {pulled.stderr.strip().splitlines()[-1]}")
    suite = name.rpartition(":")[2].removesuffix("-slim")
    local = f"{LOCAL_BASE}:{suite}"
    if not engine.has(local):
        make_base(engine, suite, local)
    say(f"base: {local}, made from Debian's packages (IMAGE_BASE=local)" if choice == "local" else
        f"base: {local}, made from Debian's packages, because {name} cannot be pulled here")
    return local


def make_base(engine: Engine, suite: str, name: str) -> None:
    """Like Debian's own slim image: no manuals, no translations."""
    if shutil.which("mmdebstrap") is None:
        install(["mmdebstrap"])
    archive = engine.scratch / "base.tar"
    slim = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*"
            for folder in ("man", "locale", "info", "doc")]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *slim, suite, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-1000:]}")
    engine("import", str(archive), name, timeout=300)
    archive.unlink()


def pip_settings(listing: str) -> dict[str, str]:
    """Parse pip's package sources from `pip config list`; variables take precedence over files."""
    found: dict[str, dict[str, str]] = {}
    for line in listing.splitlines():
        key, equals, value = line.partition("=")
        section, dot, option = key.rpartition(".")
        if not equals or not dot or value[:1] not in "'\"":
            raise LabError(f"`pip config list` printed {line!r}, not section.option='value'")
        if option in PIP_OPTIONS:
            found.setdefault(section, {})[option] = ast.literal_eval(value)
    return {option: value for section in ("global", "install", ":env:")
            for option, value in found.get(section, {}).items()}


def pip_flags(settings: dict[str, str], folder: Path, at: str = "/mnt") -> list[str]:
    """Flags for `podman build` that give it this machine's pip settings, and nothing to the image.

    `folder` is mounted at `at`, which is an empty folder in the base; what the settings name on
    this machine's disk comes below it, files as copies and folders as mounts.
    """
    if not settings:
        return []
    folder.mkdir(mode=0o700)
    mounts: list[str] = []

    def inside(option: str, word: str) -> str:
        path = Path(word.removeprefix("file://"))
        if not path.is_absolute():
            return word
        place = f"{folder.name}{len(list(folder.iterdir()))}"
        if path.is_file():
            shutil.copyfile(path, folder / place)
            return f"{at}/{place}"
        (folder / place).mkdir()
        # The pages of an index on disk lead to ../../files: so what is above it is mounted.
        index = option.endswith("index-url")
        mounts.extend(["-v", f"{path.parent if index else path}:{at}/{place}:ro"])
        return f"file://{at}/{place}/{path.name if index else ''}"

    lines = [f"{option} = {' '.join(inside(option, word) for word in value.split())}\n"
             for option, value in settings.items()]
    (folder / "pip.conf").write_text("[global]\n" + "".join(lines))
    return ["--build-arg", f"PIP_CONFIG_FILE={at}/pip.conf", "-v", f"{folder}:{at}", *mounts]


def pip_configuration() -> dict[str, str]:
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True,
                             capture_output=True, check=True).stdout
    return pip_settings(listing)


def build_command(engine: Engine, base: str, target: str, settings: dict[str, str],
                  say: Callable[[str], None]) -> list[str]:
    """The engine's words that build `target`. docker's build mounts nothing of this machine."""
    flags = ["--network", "host"]
    if engine.program == "podman":
        flags += ["--format", "docker", "--pull=never",
                  *pip_flags(settings, engine.scratch / f"pip-{target}")]
    elif settings:
        say("this machine's pip settings stay outside: docker mounts nothing into a build")
        settings = {}
    torch = os.environ.get("IMAGE_TORCH") or ("default" if settings else "cpu")
    return ["build", *flags, "--build-arg", f"BASE={base}", "--build-arg", f"TORCH={torch}",
            "--target", target, "-t", tag(target), "-f", str(DOCKERFILE), str(CHECKOUT)]


def build(engine: Engine, base: str, target: str, say: Callable[[str], None]) -> None:
    """The version that it replaces is thrown away, its shared layers stay."""
    name = tag(target)
    old = engine("image", "inspect", "-f", "{{.Id}}", name) if engine.has(name) else None
    engine(*build_command(engine, base, target, pip_configuration(), say), timeout=3600)
    if old and old != engine("image", "inspect", "-f", "{{.Id}}", name):
        engine.try_to("rmi", old)


def pip_install(folder: Path, requirement: str) -> None:
    """Into a folder of its own: tools of these tests stay out of the course's environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder),
               requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")


def say(line: str) -> None:
    print(f"==> {line}", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tools/image.py", description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=" or ".join(TARGETS))
    targets = parser.parse_args(arguments).targets or list(TARGETS)
    try:
        for target in targets:
            if target not in TARGETS:
                raise LabError(f"{target} is no target of the Dockerfile; {' or '.join(TARGETS)}")
        with tempfile.TemporaryDirectory() as scratch:
            engine = choose_engine(Path(scratch))
            base = base_image(engine, say)
            for target in targets:
                say(f"building {tag(target)} with {engine.program}: minutes the first time")
                build(engine, base, target, say)
                size = int(engine("image", "inspect", "--format", "{{.Size}}", tag(target)))
                say(f"{tag(target)} is there, {size / 1e9:.2f} GB")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"start it: {engine.program} run --rm -p 127.0.0.1:8888:8888 "
        f"-v labs-home:/home/jovyan {tag('student')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
