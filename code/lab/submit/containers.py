"""Check whether the image of the site's containers can be pulled again (reload-container)."""

from __future__ import annotations

from pathlib import Path

from lab.submit.conf import Conf
from slurmbox import site
from slurmbox.layout import Layout


def check(conf: Conf, home: Path) -> None:
    """Raise LabError if the run requests a new image, but no image is cached."""
    if not conf.reload_container:
        return
    container = site.read(home).container if Layout(home).site.exists() else None
    if container is None:
        why = "jobs do not run in a container here (site.toml has no [container])"
    elif container.start == "pyxis":
        why = "pyxis unpacks the image for every step"
    elif "://" not in container.image:
        why = f"every job reads {container.image} itself"
    else:
        return
    raise conf.error("reload-container", why, "false")
