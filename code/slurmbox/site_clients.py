"""Write the commands of a workspace that uses the site's Slurm; they apply `site.toml`.

sbatch, salloc, and srun pass its options in Slurm's own input variables. Containers are started by
options of srun (pyxis), or in place of `python` and `torchrun` inside jobs (Apptainer), so scripts
need no change.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from labcore import workspace
from labcore.errors import LabError
from slurmbox import Notify, site
from slurmbox.config import STATUS_VARIABLE, put
from slurmbox.layout import Layout
from slurmbox.site import Container, SiteProfile

PREFIXES = {"sbatch": "SBATCH", "salloc": "SALLOC", "srun": "SLURM"}
PROGRAMS = ("python", "python3", "torchrun")  # programs that Apptainer runs in the container
# A site may default to NONE, but jobs need PATH and LAB_HOME.
EXPORT = {"sbatch": {"SBATCH_EXPORT": "ALL"}, "srun": {"SLURM_EXPORT_ENV": "ALL"}}
# Variables that stay if JupyterLab itself runs in a job, because they do not describe that job.
NOT_OF_A_JOB = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_TIME_FORMAT")


def use(layout: Layout, notify: Notify = print) -> None:
    """Use the site's Slurm from now on. Raises LabError if there is none or the profile is bad."""
    _real("sbatch")
    file = site.path(layout.home)
    if not file.exists() and file == layout.home / site.NAME:
        file.write_text(site.TEMPLATE)
        notify(f"created {file}: put what jobs request from this Slurm in it")
    profile = refresh(layout)
    layout.site.touch()
    notify(f"this workspace uses the site's own Slurm; {profile.path} requests {profile}")


def refresh(layout: Layout) -> SiteProfile:
    """Rewrite the commands, and return the profile. Raises LabError if the profile is bad."""
    profile = site.read(layout.home)
    layout.site_bin.mkdir(parents=True, exist_ok=True)
    for name in PREFIXES:
        put(layout.site_bin / name, _client(layout, profile, name), 0o755)
    for name in PROGRAMS:
        if profile.container and profile.container.start != "pyxis":
            put(layout.site_bin / name, _program(layout, profile.container, name), 0o755)
        else:
            (layout.site_bin / name).unlink(missing_ok=True)
    return profile


def leave_job(environment: dict[str, str] | os._Environ) -> str | None:
    """Remove the variables of the job that JupyterLab runs in, and return the job's ID.

    With Open OnDemand or a hub's spawner, JupyterLab is itself a job, and Slurm would run new jobs
    as its steps.
    """
    job = environment.get("SLURM_JOB_ID")
    for name in list(environment):
        if name.startswith(("SLURM_", "SLURMD_")) and name not in NOT_OF_A_JOB:
            del environment[name]
    return job


def _real(name: str) -> str:
    """Return the path of the site's own command. Raises LabError if there is none."""
    folders = [one for one in os.environ.get("PATH", "").split(":") if "/.cluster/bin" not in one]
    program = shutil.which(name, path=":".join(folders))
    if program is None:
        raise LabError(f"use site: no {name} on PATH; load the site's Slurm first "
                       "(often: module load slurm)")
    return program


def _exports(values: dict[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in values.items()]


def _client(layout: Layout, profile: SiteProfile, name: str) -> str:
    lines = ["#!/bin/sh", f"# {name} with the profile. Written by `lab cluster use site`.",
             f"profile={shlex.quote(str(profile.path))}", 'if [ -z "$SLURM_JOB_ID" ]; then',
             '    if [ "$profile" -nt "$0" ]; then',
             f'        echo "{name}: error: $profile has changed: lab cluster use site" >&2',
             "        exit 1", "    fi"]
    options = _exports(profile.variables(PREFIXES[name]))
    if name == "srun":  # inside an allocation, srun gets what the job was given
        lines += [f"    {line}" for line in options]
        ranks = shlex.quote(str(layout.ranks))
        lines += ["else", f'    export {STATUS_VARIABLE}={ranks}"/$SLURM_JOB_ID"', "fi"]
    else:
        lines += ["fi", *options]
    lines += _exports(EXPORT.get(name, {}) | profile.environment)
    pyxis = profile.container if profile.container and profile.container.start == "pyxis" else None
    flags = _pyxis(layout, pyxis) if name == "srun" and pyxis else ""
    lines.append(f'exec {shlex.quote(_real(name))} {flags}"$@"')
    return "\n".join(lines) + "\n"


def _mounts(layout: Layout, container: Container) -> list[str]:
    """Return the workspace, the code that it links to, and the site's own mounts."""
    own = [str(layout.home), str(workspace.CHECKOUT)]
    for folder in own:
        if "," in folder or ":" in folder:
            raise LabError(f"{folder}: a container cannot mount a path with a comma or a colon: "
                           "move it elsewhere")
    return [*own, *container.mounts]


def _pyxis(layout: Layout, container: Container) -> str:
    mounts = [one if ":" in one else f"{one}:{one}" for one in _mounts(layout, container)]
    words = [f"--container-image={container.image}", f"--container-mounts={','.join(mounts)}",
             "--container-env=LAB_HOME"]  # otherwise the image's own value counts
    return f'{shlex.join(words)} --container-workdir="$PWD" '


def _program(layout: Layout, container: Container, name: str) -> str:
    own = Path(sys.executable).with_name(name)
    words = [container.start, "exec", "--nv", "--bind", ",".join(_mounts(layout, container)),
             container.image, name]
    return "\n".join([
        "#!/bin/sh",
        f"# {name}; inside jobs, the container's. Written by `lab cluster use site`.",
        f'if [ -z "$SLURM_JOB_ID" ]; then exec {shlex.quote(str(own))} "$@"; fi',
        # These override what the image sets.
        'export APPTAINERENV_LAB_HOME="$LAB_HOME" SINGULARITYENV_LAB_HOME="$LAB_HOME"',
        f'exec {shlex.join(words)} "$@"']) + "\n"
