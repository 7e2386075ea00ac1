"""Read `site.toml`, which describes what the labs' jobs request from a site's own Slurm.

It replaces a change in every script: the commands that site_clients.py writes turn it into Slurm's
input environment variables, which override #SBATCH lines and are overridden by a command line.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from labcore.errors import LabError

NAME, VARIABLE = "site.toml", "LAB_SITE"

# Options of sbatch, srun, and salloc, with the suffix of their input variables.
OPTIONS = {"partition": "PARTITION", "account": "ACCOUNT", "qos": "QOS",
           "reservation": "RESERVATION", "constraint": "CONSTRAINT", "clusters": "CLUSTERS",
           "time": "TIMELIMIT", "gpus-per-node": "GPUS_PER_NODE", "gres": "GRES",
           "mem": "MEM_PER_NODE", "mem-per-cpu": "MEM_PER_CPU"}
TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}|UNLIMITED", re.I)
STARTS = ("apptainer", "singularity", "pyxis")
DEVICES = ("cpu", "cuda")
RESERVED = re.compile("LAB_HOME|PATH|(SLURM|SBATCH|SALLOC)_.*")  # variables set in other ways

TEMPLATE = """\
# What the labs' jobs request from this site's Slurm; docs/real-cluster.md explains each key. After
# a change, run: lab cluster use site

[slurm]                          # options of sbatch, srun, and salloc; they override #SBATCH lines
# partition = "gpu"
# account = "course"
# gpus-per-node = 2              # or "a100:2"
# time = "00:20:00"

[trainer]
# device = "cuda"                # replaces --device cpu in scripts
# virtual-gpu = "v100"           # the GPU model of --device virtual

[container]                      # without it: the course's own environment, on a shared disk
# start = "apptainer"            # or "pyxis", "singularity"
# image = "/shared/course/labs.sif"
# mounts = ["/scratch"]

[environment]                    # further variables of every job
# NCCL_SOCKET_IFNAME = "ib0"
"""


@dataclass(frozen=True)
class Container:
    """A container for jobs.

    Attributes:
        start: one of STARTS.
        image: its path or URL.
        mounts: SOURCE, SOURCE:TARGET, or SOURCE:TARGET:FLAGS.
    """

    start: str
    image: str
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True)
class SiteProfile:
    """The contents of `site.toml`.

    Attributes:
        path: the file.
        slurm: the values of Slurm's options, in the order of OPTIONS.
        container: the container for jobs, if any.
        environment: further variables of every job.
    """

    path: Path
    slurm: dict[str, str] = field(default_factory=dict)
    container: Container | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def variables(self, prefix: str) -> dict[str, str]:
        """Return Slurm's input variables.

        Args:
            prefix: "SBATCH", "SALLOC", or "SLURM" for srun.
        """
        return {f"{prefix}_{OPTIONS[option]}": value for option, value in self.slurm.items()}

    def __str__(self) -> str:
        words = [f"--{option}={value}" for option, value in self.slurm.items()]
        words += [f"{name}={value}" for name, value in self.environment.items()]
        if self.container:
            words.append(f"in {self.container.image} ({self.container.start})")
        return ", ".join(words) or "no options"


def path(home: Path) -> Path:
    """Return the path in $LAB_SITE, which a class can share, or `site.toml` in the workspace."""
    return Path(os.environ.get(VARIABLE) or home / NAME).absolute()


def read(home: Path) -> SiteProfile:
    """Return the profile, which is empty if the workspace has no file.

    Args:
        home: the workspace.

    Raises:
        LabError: it is invalid; the message names the file, the key, the value, and the nearest
            valid one.
    """
    file = path(home)
    try:
        text = file.read_text()
    except FileNotFoundError:
        if os.environ.get(VARIABLE):
            raise LabError(f"{VARIABLE}={file}: no such file; nearest: {home / NAME}, which is "
                           f"read if {VARIABLE} is not set") from None
        return SiteProfile(file)
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{file}: {error}") from error
    try:
        return _ProfileReader(file, tomllib.loads(text)).read()
    except tomllib.TOMLDecodeError as error:
        raise LabError(f'{file}: {error}; strings need quotes, as in partition = "gpu"'
                       ) from error


class _ProfileReader:
    """Checks and converts a site's file, section by section."""

    def __init__(self, file: Path, sections: dict[str, Any]) -> None:
        self.file, self.sections = file, sections

    def read(self) -> SiteProfile:
        keys = {"slurm": OPTIONS, "trainer": ("device", "virtual-gpu"),
                "container": ("start", "image", "mounts"), "environment": None}
        for name, section in self.sections.items():
            if name not in keys or not isinstance(section, dict):
                raise LabError(f"{self.file}: [{name}]: no such section; nearest: "
                               f"[{_nearest(name, keys)}]")
            for key, value in section.items():
                if keys[name] is not None and key not in keys[name]:
                    self.refuse(name, key, value, "no such key in this section",
                                _nearest(key, keys[name]))
        return SiteProfile(self.file, self.slurm(), self.container(),
                           self.trainer() | self.environment())

    def refuse(self, section: str, key: str, value: object, why: str, nearest: str) -> NoReturn:
        raise LabError(f"{self.file}: [{section}] {key} = {value!r}: {why}; nearest: {nearest}")

    def text(self, section: str, key: str) -> str | None:
        """Return a value in Slurm's spelling, or None if it is not given. Raises LabError."""
        value = self.sections.get(section, {}).get(key)
        if isinstance(value, datetime.time):  # TOML has a type for 00:20:00
            return value.isoformat()
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is not None and (not isinstance(value, str) or not value.strip()
                                  or "\n" in value):
            self.refuse(section, key, value, "not a string of one line", f"no {key} at all")
        return value

    def slurm(self) -> dict[str, str]:
        values = {}
        for option in OPTIONS:
            value = self.text("slurm", option)
            if value is not None:
                check = CHECKS.get(option)
                if check and (wrong := check(value)):
                    self.refuse("slurm", option, value, *wrong)
                values[option] = value
        if "mem" in values and "mem-per-cpu" in values:
            self.refuse("slurm", "mem-per-cpu", values["mem-per-cpu"],
                        "Slurm takes either this or mem", "no mem-per-cpu at all")
        return values

    def container(self) -> Container | None:
        section = self.sections.get("container", {})
        if not section:
            return None
        start, image = self.text("container", "start"), self.text("container", "image")
        if start not in STARTS:
            self.refuse("container", "start", start, f"not one of {', '.join(STARTS)}",
                        _nearest(start or "", STARTS))
        if image is None or (image.startswith("/") and not Path(image).exists()):
            self.refuse("container", "image", image, "there is no such image",
                        "the path of a .sif or .sqsh file, or docker://REGISTRY/NAME:TAG")
        mounts = section.get("mounts", [])
        for mount in mounts if isinstance(mounts, list) else [None]:
            if not isinstance(mount, str) or not mount.startswith("/") or "," in mount:
                self.refuse("container", "mounts", mounts, "not a list of absolute paths",
                            'mounts = ["/scratch"]')
        return Container(start, image, tuple(mounts))

    def trainer(self) -> dict[str, str]:
        from virtualgpu.core import cards
        from virtualgpu.core.errors import UnknownCard
        from virtualgpu.core.slots import INSTEAD_OF_CPU

        device, card = self.text("trainer", "device"), self.text("trainer", "virtual-gpu")
        if device not in (None, *DEVICES):
            self.refuse("trainer", "device", device, f"not one of {', '.join(DEVICES)}",
                        _nearest(device, DEVICES))
        try:
            name = card and cards.find(card).name
        except UnknownCard as error:
            raise LabError(f"{self.file}: [trainer] virtual-gpu = {card!r}: {error}") from error
        values = {INSTEAD_OF_CPU: device if device != "cpu" else None, "VIRTUAL_GPU": name}
        return {variable: value for variable, value in values.items() if value}

    def environment(self) -> dict[str, str]:
        values = {}
        for name in self.sections.get("environment", {}):
            value = self.text("environment", name)
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                self.refuse("environment", name, value, "not a valid variable name",
                            re.sub(r"\W", "_", name).upper())
            if RESERVED.fullmatch(name):
                self.refuse("environment", name, value, "this variable is set in another way",
                            "an option under [slurm]" if "_" in name and name != "LAB_HOME"
                            else "set it before `lab start`")
            values[name] = value
        return values


def _nearest(word: str, known: object) -> str:
    """Return the most similar of the known words, or all of them."""
    synonyms = {"gpus": "gpus-per-node", "timelimit": "time", "queue": "partition"}
    near = difflib.get_close_matches(word, [*known, *synonyms], n=1)
    match = synonyms.get(near[0], near[0]) if near else None
    return match if match in known else ", ".join(known)


def _time(value: str) -> tuple[str, str] | None:
    if TIME.fullmatch(value):
        return None
    number = re.match(r"\d+", value)
    return ("not minutes, hours:minutes:seconds, or days-hours",
            f'"{int(number[0]):d}", which are minutes' if number else '"00:20:00"')


def _gpus(value: str) -> tuple[str, str] | None:
    if re.fullmatch(r"0|([A-Za-z][\w.-]*:)?[1-9]\d*", value):
        return None  # 0 is for a site without GPUs, where Slurm refuses scripts that request some
    number = re.search(r"[1-9]\d*$", value)
    return ("neither a number of GPUs nor TYPE:NUMBER",
            number[0] if number else '2 or "a100:2"')


def _gres(value: str) -> tuple[str, str] | None:
    """Check gres: Slurm refuses GPUs in it if a script has --gpus-per-node."""
    kinds = [one for one in value.split(",") if one.partition(":")[0] in ("gpu", "gres/gpu")]
    if not kinds:
        return None
    number = kinds[0].partition(":")[2] or "1"
    return ("GPUs are requested by gpus-per-node, which also overrides a script's own",
            f'gpus-per-node = "{number}"')


def _memory(value: str) -> tuple[str, str] | None:
    if re.fullmatch(r"\d+[KMGT]?", value, re.I):
        return None
    number = re.match(r"\d+", value)
    return "not a number with K, M, G, or T", f'"{number[0]}G"' if number else '"64G"'


CHECKS: dict[str, Callable[[str], tuple[str, str] | None]] = {
    "time": _time, "gpus-per-node": _gpus, "gres": _gres, "mem": _memory, "mem-per-cpu": _memory}
