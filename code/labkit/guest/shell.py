"""An IPython shell in a workspace that behaves as the notebook's kernel does, without Jupyter."""

from __future__ import annotations

import base64
import builtins
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

from IPython.core.async_helpers import _asyncio_runner
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import StdinNotImplementedError
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.text import SList
from traitlets import Any as AnyTrait
from traitlets import Type
from traitlets.config import Config

from labcore import shipping, workspace
from labkit.cells import transform_work
from labkit.guest.capture import Capture

MOST_WORK = 3_000_000  # characters that IPython may tokenize for one cell: a few seconds
MOST_TEXT = 10_000  # characters of an exception's text
MOST_LINES = 100  # of a traceback


class Results(DisplayHook):
    """Captures the value of a cell's last line."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: Any = None) -> None:
        self.shell.capture.add({"output_type": "execute_result", "data": bundle(format_dict),
                                "metadata": plain(md_dict or {}),
                                "execution_count": self.prompt_count})


class Displays(DisplayPublisher):
    """Collects what display() shows, including figures."""

    def publish(self, data: Any, metadata: Any = None, source: Any = None, *,
                transient: Any = None, update: bool = False, **ignored: Any) -> None:
        display_id = (transient or {}).get("display_id")
        self.shell.capture.add({"output_type": "display_data", "data": bundle(data),
                                "metadata": plain(metadata or {})}, display_id, update)

    def clear_output(self, wait: bool = False) -> None:
        self.shell.capture.clear(wait)


class Shell(InteractiveShell):
    """The shell. Set `capture` before the first cell."""

    displayhook_class = Type(Results)
    display_pub_class = Type(Displays)
    capture = AnyTrait()

    def enable_gui(self, gui: str | None = None) -> None:
        pass

    def ask_exit(self) -> None:
        pass  # exit() in an answer must not end the guest

    def _showtraceback(self, etype: type, evalue: BaseException, stb: list[str]) -> None:
        lines = "\n".join(stb).split("\n")
        if len(lines) > MOST_LINES:
            lines[MOST_LINES // 2:-MOST_LINES // 2] = ["..."]
        self.capture.add({"output_type": "error", "ename": str(etype.__name__)[:MOST_TEXT],
                          "evalue": text_of(evalue), "traceback": [line[:MOST_TEXT]
                                                                   for line in lines]})

    def system(self, cmd: str) -> None:  # type: ignore[override]
        """Run `!command`, whose output comes through the descriptors."""
        done = subprocess.run(self.var_expand(cmd, depth=1), shell=True, check=False,
                              stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT)
        self.user_ns["_exit_code"] = done.returncode

    def getoutput(self, cmd: str, split: bool = True, depth: int = 0) -> Any:
        """Run `x = !command`, and return its output."""
        done = subprocess.run(self.var_expand(cmd, depth=depth + 1), shell=True, check=False,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        text = done.stdout.decode(errors="replace")
        return SList(text.splitlines()) if split else text

    async def run(self, source: str) -> BaseException | None:
        """Run one cell as ipykernel does, in the running loop. Return what it raised, or None."""
        work = 0 if source.startswith("%%") else transform_work(source)
        if work > MOST_WORK:
            error = RuntimeError(f"this cell is not run: IPython would tokenize {work:,} "
                                 f"characters to transform its magics; at most {MOST_WORK:,}")
            self.showtraceback((RuntimeError, error, None))
            return error
        try:
            transformed, failed = self.transform_cell(source), None
        except Exception:
            transformed, failed = source, sys.exc_info()
        if self.loop_runner is _asyncio_runner and self.should_run_async(
                source, transformed_cell=transformed, preprocessing_exc_tuple=failed):
            result = await self.run_cell_async(source, store_history=True,
                                               transformed_cell=transformed,
                                               preprocessing_exc_tuple=failed)
            self.events.trigger("post_execute")
            self.events.trigger("post_run_cell", result)
        else:
            result = self.run_cell(source, store_history=True)
        return result.error_before_exec or result.error_in_exec


def enter_workspace() -> None:
    """Lay out $LAB_HOME, change to it, and give programs a folder for temporary files."""
    home = workspace.home()
    shipping.make_workspace(home, lambda line: None)
    os.chdir(home)
    if not os.access("/tmp", os.W_OK):
        scratch = Path.home() / ".tmp"
        scratch.mkdir(exist_ok=True)
        os.environ["TMPDIR"] = str(scratch)
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # as in the kernel
    os.environ["PAGER"] = os.environ["GIT_PAGER"] = "cat"
    sys.path.insert(0, "")  # the student's own modules, as in the kernel


def make(capture: Capture) -> Shell:
    """Create the only shell of this process, without a history or files of its own."""
    config = Config({"HistoryManager": {"enabled": False}})
    shell = Shell.instance(config=config)
    shell.capture = capture
    builtins.input = _refuse("raw_input")
    getpass.getpass = _refuse("getpass")
    return shell


def _refuse(name: str) -> Any:
    def refuse(*arguments: Any, **keywords: Any) -> NoReturn:
        raise StdinNotImplementedError(
            f"{name} was called, but this frontend does not support input requests.")

    return refuse


def bundle(data: Any) -> dict[str, Any]:
    """Return a MIME bundle as JSON, with images in base64 and other objects as strings."""
    result = {}
    for kind, content in dict(data).items():
        if isinstance(content, bytes):
            content = base64.b64encode(content).decode()
        result[str(kind)] = content if isinstance(content, str) else plain(content)
    return result


def plain(value: Any) -> Any:
    """Return `value`, or its string if it is not JSON."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        return text_of(value)


def text_of(value: Any) -> str:
    try:
        return str(value)[:MOST_TEXT]
    except Exception as error:  # the student's own __str__
        return f"(its text cannot be shown: {type(error).__name__})"
