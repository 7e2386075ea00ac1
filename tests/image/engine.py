"""podman, the base image and the build: what `make test-image` needs before it can look."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lab.errors import LabError
from lab.workspace import CHECKOUT

DOCKERFILE = CHECKOUT / "docker" / "Dockerfile"
IMAGE = "localhost/large-scale-training-labs:test"
LOCAL_BASE = "localhost/large-scale-training-labs-base"
PROGRAMS = ("podman", "buildah", "runc", "slirp4netns", "mmdebstrap")
PACKAGES = (*PROGRAMS, "netavark", "iptables", "uidmap")
PIP_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert",
               "proxy", "timeout")


def ensure_programs() -> None:
    """Install what is missing where root may; else raise LabError that says what to install."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if os.getuid() or shutil.which("apt-get") is None:
        raise LabError(f"{', '.join(missing)} not installed, so the image cannot be tested: "
                       f"sudo {' '.join(command)}")
    for words in (["apt-get", "update"], command):
        done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")


class Podman:
    """podman with a configuration of our own; the machine's is not touched."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.environment = dict(os.environ)
        if os.getuid() == 0 and not Path("/run/systemd/system").is_dir():
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
        return subprocess.run(["podman", *words], text=True, capture_output=True, timeout=timeout,
                              env=self.environment, stdin=subprocess.DEVNULL, cwd=self.scratch)

    def __call__(self, *words: str, timeout: float = 120) -> str:
        """What it printed. Raises LabError with its last lines where it fails."""
        done = self.try_to(*words, timeout=timeout)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise LabError(f"podman {' '.join(words)} ended with {done.returncode}:\n{tail}")
        return done.stdout.strip()

    def has(self, image: str) -> bool:
        return self.try_to("image", "exists", image).returncode == 0

    def litter(self) -> set[str]:
        """Containers, networks, volumes and nameless images, to compare before and after."""
        listed = {"container": ("ps", "-aq", "--no-trunc"), "network": ("network", "ls", "-q"),
                  "volume": ("volume", "ls", "-q"),
                  "image": ("images", "-q", "--no-trunc", "--filter", "dangling=true")}
        return {f"{kind} {name}" for kind, words in listed.items() for name in self(*words).split()}


def named_base() -> str:
    """The base that the Dockerfile names."""
    found = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE.read_text(), re.M)
    if not found:
        raise LabError(f"{DOCKERFILE} has no line ARG BASE=...: the base is named there")
    return found.group(1)


def base_image(podman: Podman, say: Callable[[str], None]) -> str:
    """The named base from its registry or made here; IMAGE_BASE=registry|local insists on one."""
    choice = os.environ.get("IMAGE_BASE", "auto")
    if choice not in ("auto", "registry", "local"):
        raise LabError(f"IMAGE_BASE={choice} is not known; registry, local or auto (either)")
    name = named_base()
    if choice != "local":
        pulled = podman.try_to("pull", name, timeout=600)
        if pulled.returncode == 0:
            say(f"base: {name}, from its registry")
            return name
        if choice == "registry":
            raise LabError(f"{name} cannot be pulled: {pulled.stderr.strip().splitlines()[-1]}")
    suite = name.rpartition(":")[2].removesuffix("-slim")
    local = f"{LOCAL_BASE}:{suite}"
    if not podman.has(local):
        make_base(podman, suite, local)
    say(f"base: {local}, made from Debian's packages (IMAGE_BASE=local)" if choice == "local" else
        f"base: {local}, made from Debian's packages, because {name} cannot be pulled here")
    return local


def make_base(podman: Podman, suite: str, tag: str) -> None:
    """Like Debian's own slim image: no manuals, no translations."""
    archive = podman.scratch / "base.tar"
    slim = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*"
            for folder in ("man", "locale", "info", "doc")]
    command = ["mmdebstrap", "--quiet", "--variant=minbase", *slim, suite, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-1000:]}")
    podman("import", str(archive), tag, timeout=300)
    archive.unlink()


def pip_settings(listing: str) -> dict[str, str]:
    """Where pip finds packages, from what `pip config list` prints; variables win over files."""
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


def build(podman: Podman, base: str) -> None:
    """Build IMAGE; the version that it replaces is thrown away, its shared layers stay."""
    listing = subprocess.run([sys.executable, "-m", "pip", "config", "list"], text=True,
                             capture_output=True, check=True).stdout
    settings = pip_settings(listing)
    flags = pip_flags(settings, podman.scratch / "pip")
    torch = os.environ.get("IMAGE_TORCH") or ("default" if settings else "cpu")
    old = podman("image", "inspect", "-f", "{{.Id}}", IMAGE) if podman.has(IMAGE) else None
    podman("build", "--network", "host", "--format", "docker", "--pull=never",
           "--build-arg", f"BASE={base}", "--build-arg", f"TORCH={torch}", *flags,
           "-t", IMAGE, "-f", str(DOCKERFILE), str(CHECKOUT), timeout=1800)
    if old and old != podman("image", "inspect", "-f", "{{.Id}}", IMAGE):
        podman.try_to("rmi", old)


def pip_install(folder: Path, requirement: str) -> None:
    """Into a folder of its own: tools of these tests stay out of the course's environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder),
               requirement]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LabError(f"{' '.join(command)} failed:\n{done.stderr[-500:]}")
