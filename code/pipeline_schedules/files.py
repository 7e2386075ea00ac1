"""Read a schedule from a Python or a JSON file.

A Python file is executed with all its side effects: load only your own files, on your own machine.
A JSON file is only data.
"""

from __future__ import annotations

import difflib
import inspect
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pipeline_schedules.actions import Schedule, ScheduleError
from pipeline_schedules.parsing import parse


def from_json(path: Path) -> Schedule:
    """Return the schedule in a JSON file; ScheduleError names the line and column of an error."""
    text = _read(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScheduleError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}"
                            ) from None
    except (RecursionError, ValueError) as error:
        raise ScheduleError(f"{path}: not a list of stages ({error})") from None
    return parse(value, str(path))


def from_python(path: Path, stages: int, micro_batches: int, chunks: int) -> Schedule:
    """Return the schedule that a Python file's function makes.

    Args:
        path: the file.
        stages: the number of pipeline stages.
        micro_batches: micro-batches per step.
        chunks: model chunks per stage.

    Raises:
        ScheduleError: the file or its function fails, or its result is malformed; the message
            names the line of the file.
    """
    function = _function(path)
    name = f"{path}: {function.__name__}"
    try:
        value = _call(function, name, stages, micro_batches, chunks)
    except ScheduleError as error:
        raise error if str(error).startswith(name) else ScheduleError(
            _where_it_failed(path, error)) from error
    except (Exception, SystemExit) as error:
        raise ScheduleError(_where_it_failed(path, error)) from error
    return parse(value, f"{name}({stages}, {micro_batches}"
                 + (f", {chunks})" if chunks != 1 else ")"))


def _call(function: Callable[..., Schedule], name: str, stages: int, micro_batches: int,
          chunks: int) -> Schedule:
    """Call the file's function, which may lack the third parameter if there is one chunk."""
    if _takes(function, 2) and chunks == 1:
        return function(stages, micro_batches)
    if _takes(function, 3):
        return function(stages, micro_batches, chunks)
    expected = "(stages, micro_batches)" if chunks == 1 else "(stages, micro_batches, chunks)"
    raise ScheduleError(f"{name} should take {expected}, not {inspect.signature(function)}")


def _takes(function: Callable, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _function(path: Path) -> Callable[..., Schedule]:
    """Execute the file, and return its function `schedule`, or the one with the file's name."""
    text = _read(path)
    # Executed from its text, not imported: an edit within the same second would reuse the cache.
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ScheduleError(_where_it_failed(path, error)) from error
    for name in ("schedule", path.stem):
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    names = [name for name, value in vars(module).items() if inspect.isfunction(value)]
    raise ScheduleError(f"{path}: no function schedule(stages, micro_batches), nor one called "
                        f"{path.stem}; it has {', '.join(names) or 'no function'}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        near = difflib.get_close_matches(path.name, _neighbors(path), n=1)
        hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
        raise ScheduleError(f"{path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise ScheduleError(f"{path}: not UTF-8 text") from None


def _neighbors(path: Path) -> list[str]:
    try:
        return [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        return []


def _where_it_failed(path: Path, error: BaseException) -> str:
    """Return the innermost line of the file in the traceback, and the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == str(path)]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{path}" + (f", line {line}" if line else "") + f": {type(error).__name__}: {message}"
