"""Apply the guard to every opening of a gradebook, even by nbgrader's own commands.

`grader.config.configure` calls `watch`, so this holds for whatever reads the course's
nbgrader_config.py: the `lab` commands, `nbgrader ...`, and formgrader.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from nbgrader import api, dbutil
from nbgrader.api import Gradebook
from nbgrader.apps import NbGrader
from sqlalchemy import event
from sqlalchemy.engine import make_url
from sqlalchemy.util import LRUCache
from traitlets.config import Application

from grader.gradebook import entered, guard, mark
from grader.gradebook.faults import SECONDS_TO_WAIT
from grader.gradebook.guard import LostGradebook
from labcore.errors import LabError

CHANGES = ("INSERT", "UPDATE", "DELETE")
CHANGED = "lab: changes"  # in a connection's notes: the new count, until it is committed


class CompiledStatements(LRUCache):
    """Compiled SQL of the statements that this process has executed on any gradebook.

    Compiling takes longer than executing, and each opened gradebook has its own engine, whose cache
    is empty. SQLAlchemy's keys begin with the engine's dialect object; all of SQLite's write the
    same SQL.
    """

    __slots__ = ()

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get((type(key[0]), *key[1:]), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        super().__setitem__((type(key[0]), *key[1:]), compiled)


STATEMENTS = CompiledStatements(500)


def watch() -> None:
    """Put the guard and the mark around nbgrader's Gradebook, once. A new gradebook's version is
    found in this process."""
    opened = Gradebook.__init__
    if hasattr(opened, "__wrapped__"):
        return

    @functools.wraps(opened)
    def guarded(book: Gradebook, db_url: str, *rest: Any, **more: Any) -> None:
        path = mark.sqlite_file(db_url)
        if path is None or not _is_course(path.parent):
            opened(book, db_url, *rest, **more)
            return
        try:
            guard.require_sound(path)
        except LabError as error:
            _end_nbgrader(error)
            raise
        url = make_url(db_url).update_query_dict({"timeout": str(SECONDS_TO_WAIT)})
        opened(book, url.render_as_string(hide_password=False), *rest, **more)
        book.engine.update_execution_options(compiled_cache=STATEMENTS)
        entered.TABLES.create_all(book.engine)
        ensure_mark(path)
        _count_changes(book, path)

    Gradebook.__init__ = guarded
    api.get_alembic_version = functools.wraps(api.get_alembic_version)(schema_version)


def schema_version() -> str:
    """Return the version that nbgrader gives a new gradebook's tables.

    nbgrader starts a process to find it, which costs more than the rest of making a gradebook.
    """
    from alembic.script import ScriptDirectory  # only a new gradebook needs it

    return ScriptDirectory(dbutil.ALEMBIC_DIR).get_current_head()


def _is_course(folder: Path) -> bool:
    return (folder / "nbgrader_config.py").is_file()


def _end_nbgrader(error: LabError) -> None:
    """Exit if this is one of nbgrader's commands, because nbgrader logs most errors and
    continues."""
    if Application.initialized() and isinstance(Application.instance(), NbGrader):
        print(f"nbgrader: error: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def ensure_mark(path: Path) -> None:
    """Give the gradebook a mark unless it has one, and save it beside the file."""
    before = mark.saved_mark(path)
    if before is not None:
        return
    connection = mark.connect(path)
    try:
        now = mark.header_mark(connection)
        if not now.name:
            now = mark.Mark(mark.new_name(), now.changes)
            connection.execute("BEGIN IMMEDIATE")
            mark.write_header_mark(connection, now)
            connection.execute("COMMIT")
        mark.save_mark(path, now)
    finally:
        connection.close()


def _inode(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


def _count_changes(book: Gradebook, path: Path) -> None:
    """Count every transaction that writes, inside the file and then beside it."""
    inode = path.stat().st_ino

    @event.listens_for(book.engine, "begin")
    def _same_file(connection: Any) -> None:
        if _inode(path) != inode:
            raise LostGradebook(f"{path} was removed or replaced while it was open: close whatever "
                                "has it open (formgrader, say); `lab gradebook restore` may help")

    @event.listens_for(book.engine, "before_cursor_execute")
    def _note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip()[:6].upper() in CHANGES:
            connection.info[CHANGED] = None

    @event.listens_for(book.engine, "commit")
    def _count(connection: Any) -> None:
        if CHANGED in connection.info:
            raw = connection.connection.driver_connection
            now = mark.header_mark(raw)
            connection.info[CHANGED] = now = mark.Mark(now.name, now.changes + 1)
            mark.write_header_mark(raw, now)
            pending.append(now)
            del connection.info[CHANGED]

    @event.listens_for(book.engine, "rollback")
    def _forget(connection: Any) -> None:
        if not connection.invalidated:  # as after Ctrl-C in a statement; then it has no notes
            connection.info.pop(CHANGED, None)
        pending.clear()

    pending: list[mark.Mark] = []

    @event.listens_for(book.db, "after_commit")
    def _save_mark(session: Any) -> None:
        if pending:
            mark.save_mark(path, pending[-1])
            pending.clear()
