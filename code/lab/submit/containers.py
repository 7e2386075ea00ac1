"""reload-container: pull the image of the site's containers again."""

from __future__ import annotations

from pathlib import Path

from lab.submit.conf import Conf
from slurmbox import site
from slurmbox.layout import Layout


def check(conf: Conf, home: Path) -> None:
    """Raise LabError if the run asks for a new image, and no image is cached."""
    if not conf.reload_container:
        return
    found = site.read(home).container if Layout(home).site.exists() else None
    if found is None:
        why = "jobs run in no container here (site.toml has no [container])"
    elif found.start == "pyxis":
        why = "pyxis unpacks the image for every step"
    elif "://" not in found.image:
        why = f"every job reads {found.image} itself"
    else:
        return
    raise conf.error("reload-container", why, "false")
