"""A schedule by name, from a learner's Python file, or from a JSON file.

A Python file is run, with everything that it may do: load only your own, on your own machine. A
JSON file is data. What is loaded has the right form; validation.check says whether it makes sense.
"""

from __future__ import annotations

import difflib
import inspect
import json
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pipeline_schedules.actions import Schedule, ScheduleError, parse
from pipeline_schedules.builtin import BUILT_IN


def load(source: str | Path, stages: int, micro_batches: int, chunks: int = 1) -> Schedule:
    """The schedule `source` for that many stages, micro-batches and chunks per stage.

    source: a name in BUILT_IN; a .py file that has a function `schedule(stages, micro_batches)`,
    or one with the file's own name (and with `chunks` if it takes a third argument), which returns
    what actions.parse reads; or a .json file that holds the same, a list of texts like "F0 B0".
    Raises ScheduleError, which names the file, and the stage and the position where it can.
    """
    suffix = Path(source).suffix
    if suffix == ".py":
        return _from_python(Path(source), stages, micro_batches, chunks)
    if suffix == ".json":
        return _from_json(Path(source))
    name = str(source)
    if name not in BUILT_IN:
        near = difflib.get_close_matches(name.lower().replace("_", "-"), BUILT_IN, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScheduleError(f"schedule {name!r}: neither one of {', '.join(BUILT_IN)} nor a .py or "
                            f".json file{hint}")
    return _call(BUILT_IN[name], name, stages, micro_batches, chunks)


def _call(function: Callable, name: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    if _fits(function, 2) and chunks == 1:
        return function(stages, micro_batches)
    if _fits(function, 3):
        return function(stages, micro_batches, chunks)
    if name in BUILT_IN:
        raise ScheduleError(f"{name} has one chunk per stage, not {chunks}; for several take "
                            "interleaved")
    wanted = "(stages, micro_batches)" if chunks == 1 else "(stages, micro_batches, chunks)"
    raise ScheduleError(f"{name} should take {wanted}, not {inspect.signature(function)}")


def _fits(function: Callable, count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        near = difflib.get_close_matches(path.name, _neighbors(path), n=1)
        hint = f"; did you mean {path.with_name(near[0])}?" if near else ""
        raise ScheduleError(f"{path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise ScheduleError(f"{path}: this is not text in UTF-8") from None


def _neighbors(path: Path) -> list[str]:
    try:
        return [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        return []


def _from_json(path: Path) -> Schedule:
    text = _read(path)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScheduleError(f"{path}, line {error.lineno}, column {error.colno}: {error.msg}"
                            ) from None
    except (RecursionError, ValueError) as error:
        raise ScheduleError(f"{path}: this is no list of stages ({error})") from None
    return parse(value, str(path))


def _from_python(path: Path, stages: int, micro_batches: int, chunks: int) -> Schedule:
    text = _read(path)
    # Run from its text, not imported: an edit within a second would meet the cached old one.
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise ScheduleError(_where_it_failed(path, error)) from error
    names = ["schedule", path.stem]
    function = next((getattr(module, name) for name in names
                     if callable(getattr(module, name, None))), None)
    if function is None:
        has = [name for name, value in vars(module).items() if inspect.isfunction(value)]
        raise ScheduleError(f"{path}: no function schedule(stages, micro_batches), nor one called "
                            f"{path.stem}; it has {', '.join(has) or 'no function'}")
    name = f"{path}: {function.__name__}"
    try:
        value = _call(function, name, stages, micro_batches, chunks)
    except ScheduleError as error:
        raise error if str(error).startswith(name) else ScheduleError(
            _where_it_failed(path, error)) from error
    except (Exception, SystemExit) as error:
        raise ScheduleError(_where_it_failed(path, error)) from error
    return parse(value, f"{path}: {function.__name__}({stages}, {micro_batches}"
                        + (f", {chunks})" if chunks != 1 else ")"))


def _where_it_failed(path: Path, error: BaseException) -> str:
    """The innermost line of the learner's file, and what went wrong there."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == str(path)]
    line = lines[-1] if lines else getattr(error, "lineno", None)
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{path}" + (f", line {line}" if line else "") + f": {type(error).__name__}: {what}"
