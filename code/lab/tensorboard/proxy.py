"""The named server `tensorboard` of jupyter-server-proxy, started at the first click."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

NAME = "tensorboard"
SECONDS_TO_START = 60


def server() -> dict[str, object]:
    """Return the configuration for jupyter-server-proxy, which fills in {port} and {base_url}."""
    # The interpreter rather than the `lab` command: the server's PATH need not hold ours.
    command = [sys.executable, "-c", "import sys; from lab.cli import main; sys.exit(main())",
               "tensorboard", "--port", "{port}", "--path-prefix", "{base_url}" + NAME]
    icon = Path(str(resources.files("lab.tensorboard") / "icon.svg"))
    return {
        "command": command,
        "absolute_url": True,  # it makes its own addresses from --path-prefix
        "timeout": SECONDS_TO_START,
        "launcher_entry": {"title": "TensorBoard", "icon_path": str(icon), "category": "Other"},
        "new_browser_tab": True,
    }
