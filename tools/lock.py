"""Pin what pyproject.toml asks for: `make lock` writes requirements.lock for every Python we take.

torch's own companions (CUDA libraries, triton) stay out: torch's metadata pins them where its
build needs them, and a machine with the CPU build must not be made to fetch gigabytes.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADER = "# Made by `make lock` from pyproject.toml. Do not edit.\n"
TORCH_COMPANION = re.compile(r"^(nvidia-|cuda-|triton\b)")


def compile_pins() -> str:
    """The pins as text, one `name==version ; marker` a line."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "lock"
        command = [sys.executable, "-m", "uv", "pip", "compile", ROOT / "pyproject.toml"]
        command += ["--all-extras", "--universal", "--python-version", "3.11", "--quiet"]
        command += ["--no-header", "--no-annotate", "--output-file", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        lines = out.read_text().splitlines()
    return "".join(f"{line}\n" for line in lines if not TORCH_COMPANION.match(line))


if __name__ == "__main__":
    (ROOT / "requirements.lock").write_text(HEADER + compile_pins())
