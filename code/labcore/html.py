"""Render HTML from Jinja2 templates, in which every value is escaped.

A template is a file next to the module that renders it, and its name is its path, beginning with
the package: `render("grader/stats/page.html.j2", rows=rows)`. Pages extend `labcore/page.html.j2`,
which has the frame, the Content-Security-Policy, and the style sheet; tables come from
`labcore/macros.html.j2`. No Python code builds tags from strings, so whatever a student controls
can only become text.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from labcore.terminal import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(template: str, /, **values: object) -> str:
    """Render a page, or a part of a page that another program inserts.

    Args:
        template: its path, beginning with the package.
        values: the variables that the template uses.

    Raises:
        jinja2.UndefinedError: the template uses a variable that is not among the values.
    """
    return environment().get_template(template).render(values)


def fragment(template: str, /, **values: object) -> Markup:
    """Render a part of a page, which another template inserts without escaping it again.

    Args:
        template: its path, beginning with the package.
        values: the variables that the template uses.
    """
    from markupsafe import Markup

    return Markup(render(template, **values))


@functools.cache
def environment() -> Environment:
    """Return the environment of all templates.

    Jinja2 is imported here, because most commands print no HTML.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined,
        finalize=_printable, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)


def _source(template: str) -> str | None:
    package, _, path = template.partition("/")
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).parent / path
    return file.read_text() if file.is_file() else None


def _printable(value: object) -> object:
    """Return a value as text, with control characters and bidi marks as Python escapes.

    HTML forbids control characters, and bidi marks reorder the text around them. Fragments stay as
    they are.
    """
    return value if hasattr(value, "__html__") else visible(str(value), keep="\n\t")
