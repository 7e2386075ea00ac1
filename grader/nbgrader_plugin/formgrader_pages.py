"""formgrader's pages and answers, with a Content-Security-Policy that runs its own scripts only.

A browser that shows formgrader is signed in to the whole Jupyter server, which runs code. So each
response names the scripts that may run in it: nbgrader's, which get a nonce in their templates
before any text of a student is pasted in, and MathJax. This module changes nbgrader's classes in
place, when the course's configuration is read.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from grader.nbgrader_plugin import mathjax
from grader.nbgrader_plugin.exporter import Sanitized

PACKAGE = "nbgrader.server_extensions.formgrader"
MACROS = "formgrade_macros.html.j2"
STRING = re.compile(r'= "\{\{ ([\w.]+) \}\}([^"{]*)";')
VALUE = re.compile(r"\{\{ (resources\.\w+) \}\}")
HANDLER = re.compile(r'\bon[a-z]+="([^"]*)"')
FRAMES = re.compile(r"frame-ancestors [^;]+")


def with_nonce(template: str, nonce: str) -> str:
    """Return a template of nbgrader's whose scripts carry a nonce and whose values are escaped.

    Args:
        template: the text of a Jinja template.
        nonce: the Jinja expression of the nonce.
    """
    text = STRING.sub(r'= {{ (\1 ~ "\2") | tojson }};', template)
    text = VALUE.sub(r"{{ \1 | e }}", text)
    return text.replace("<script", f'<script nonce="{{{{ {nonce} }}}}"')


def handler_hashes(folder: Path) -> str:
    """Return the hashes of the `onclick` attributes in nbgrader's templates, as a policy's sources.
    """
    attributes = {text for path in sorted(folder.rglob("*")) if path.is_file()
                  for text in HANDLER.findall(path.read_text())}
    digests = (hashlib.sha256(text.encode()).digest() for text in sorted(attributes))
    return " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)


class NonceLoader(FileSystemLoader):
    """nbgrader's templates of the pages that list assignments, submissions and students."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Any]:
        text, path, current = super().get_source(environment, template)
        nonce = "resources.nonce" if template.endswith(MACROS) else "nonce"
        return with_nonce(text, nonce), path, current


def _nonce(handler: Any) -> str:
    if not hasattr(handler, "_lab_nonce"):
        handler._lab_nonce = secrets.token_urlsafe(18)
    return handler._lab_nonce


class FormgraderPages:
    """Replacements for methods of nbgrader's handlers; each method takes one request's handler.

    Args:
        folder: nbgrader's templates.
        given: returns the server's own policy for a handler.
    """

    def __init__(self, folder: Path, given: Callable[[Any], str]) -> None:
        self.folder, self.given = folder, given
        self.templates = Environment(loader=NonceLoader([str(folder)]), autoescape=True)
        self.scripts = f"'unsafe-hashes' {handler_hashes(folder)} {mathjax.HASH} {mathjax.FOLDER}"

    def frames(self, handler: Any) -> str:
        """Return where a page may be framed: a hub allows less than Jupyter itself."""
        match = FRAMES.search(self.given(handler))
        return match[0] if match else "frame-ancestors 'self'"

    def policy(self, handler: Any) -> str:
        """Return the policy of a page."""
        return (f"default-src 'none'; script-src 'nonce-{_nonce(handler)}' {self.scripts}; "
                f"style-src 'self' 'unsafe-inline' {mathjax.FOLDER}; img-src 'self' data:; "
                f"font-src 'self' data: {mathjax.FOLDER}; connect-src 'self'; "
                f"base-uri 'none'; form-action 'none'; {self.frames(handler)}")

    def inert(self, handler: Any) -> str:
        """Return the policy of data and of students' files, which are not pages of formgrader."""
        return f"default-src 'none'; sandbox; {self.frames(handler)}"

    def render(self, handler: Any, name: str, **values: Any) -> str:
        """Render one of nbgrader's own templates.

        Args:
            handler: the request's handler.
            name: the template.
            **values: its variables.
        """
        nonce = _nonce(handler)
        if "resources" in values:
            values["resources"] = {**values["resources"], "nonce": nonce}
        return self.templates.get_template(name).render(nonce=nonce, **values)

    def exporter(self, handler: Any) -> WithNonce:
        """Return the exporter for a submission; it is created again when the configuration
        changes."""
        settings, config = handler.settings, handler.settings["nbgrader_formgrader"].config
        cached = settings.get("lab_exporter")
        if cached is None or cached[0] is not config:
            cached = settings["lab_exporter"] = (config, self._exporter(config))
        return WithNonce(cached[1], _nonce(handler))

    def _exporter(self, config: Any) -> Sanitized:
        text = (self.folder / "formgrade" / MACROS).read_text()

        class SubmissionPage(Sanitized):
            templates = Sanitized.templates | {MACROS: with_nonce(text, "resources.nonce")}

        return SubmissionPage(config=config)


class WithNonce:
    """The exporter of one request, as nbgrader's handler calls it."""

    def __init__(self, exporter: Sanitized, nonce: str) -> None:
        self.exporter, self.nonce = exporter, nonce

    def from_filename(self, filename: str, resources: dict[str, Any]) -> Any:
        """Render a submission.

        Args:
            filename: its notebook.
            resources: nbconvert's resources.
        """
        return self.exporter.from_filename(filename, resources={**resources, "nonce": self.nonce})


def harden() -> None:
    """Change nbgrader's handlers, if this process serves formgrader. A second call does nothing."""
    if f"{PACKAGE}.formgrader" not in sys.modules:
        return
    from nbgrader.server_extensions.formgrader import base, handlers

    if getattr(base.BaseHandler, "hardened", False):
        return
    pages = FormgraderPages(Path(handlers.template_path),
                            base.BaseHandler.content_security_policy.fget)

    def plain_headers(handler: Any) -> None:
        super(base.BaseApiHandler, handler).set_default_headers()
        # Some answers are strings of JSON, which tornado would call HTML.
        handler.set_header("Content-Type", "text/plain; charset=UTF-8")

    base.BaseHandler.hardened = True
    base.BaseHandler.content_security_policy = property(pages.policy)
    base.BaseHandler.render = lambda handler, name, **values: pages.render(handler, name, **values)
    base.BaseHandler.exporter = property(pages.exporter)
    base.BaseApiHandler.content_security_policy = property(pages.inert)
    base.BaseApiHandler.set_default_headers = plain_headers
    handlers.SubmissionFilesHandler.content_security_policy = property(pages.inert)
    handlers.FormgraderHandler.get = _this_course_only(handlers.FormgraderHandler.get)


def _this_course_only(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the handler of formgrader's address, restricted to this course.

    nbgrader would run the configuration in any folder that the address names, such as a student's.
    """
    from tornado import web

    def checked(handler: Any) -> Any:
        requested = handler.get_argument("path", "")
        root = handler.settings["nbgrader_formgrader"].coursedir.root
        is_this_course = os.path.realpath(requested) == os.path.realpath(root)
        if handler.current_user and requested and not is_this_course:
            raise web.HTTPError(403, f"this server is for the course in {root} only: start "
                                     "`lab formgrader` in the other course's folder")
        return get(handler)

    return checked
