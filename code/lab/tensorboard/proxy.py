"""Configure jupyter-server-proxy's server `tensorboard`, which starts at the first click."""

from __future__ import annotations

import sys
from importlib import resources
from pathlib import Path

NAME = "tensorboard"
START_TIMEOUT = 60  # seconds


def server() -> dict[str, object]:
    """Return the configuration for jupyter-server-proxy, which fills in {port} and {base_url}."""
    # The interpreter rather than the `lab` command, which may not be on the server's PATH.
    command = [sys.executable, "-c", "import sys; from lab.cli import main; sys.exit(main())",
               "tensorboard", "--port", "{port}", "--path-prefix", "{base_url}" + NAME]
    icon = Path(str(resources.files("lab.tensorboard") / "icon.svg"))
    return {
        "command": command,
        "absolute_url": True,  # TensorBoard adds --path-prefix to its URLs itself
        "timeout": START_TIMEOUT,
        "launcher_entry": {"title": "TensorBoard", "icon_path": str(icon), "category": "Other"},
        "new_browser_tab": True,
    }
