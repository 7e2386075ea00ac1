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
NOTHING_RUNS = "default-src 'none'; sandbox; frame-ancestors 'self'"


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
    found = {text for path in sorted(folder.rglob("*")) if path.is_file()
             for text in HANDLER.findall(path.read_text())}
    digests = (hashlib.sha256(text.encode()).digest() for text in sorted(found))
    return " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests)


class NonceLoader(FileSystemLoader):
    """nbgrader's templates of the pages that list assignments, submissions and students."""

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Any]:
        text, path, current = super().get_source(environment, template)
        nonce = "resources.nonce" if template.endswith(MACROS) else "nonce"
        return with_nonce(text, nonce), path, current


def _exporter(folder: Path, config: Any) -> Sanitized:
    text = (folder / "formgrade" / MACROS).read_text()

    class SubmissionPage(Sanitized):
        templates = Sanitized.templates | {MACROS: with_nonce(text, "resources.nonce")}

    return SubmissionPage(config=config)


class _WithNonce:
    """The exporter of one request, as nbgrader's handler calls it."""

    def __init__(self, exporter: Sanitized, nonce: str) -> None:
        self.exporter, self.nonce = exporter, nonce

    def from_filename(self, filename: str, resources: dict[str, Any]) -> Any:
        return self.exporter.from_filename(filename, resources={**resources, "nonce": self.nonce})


def _nonce(handler: Any) -> str:
    if not hasattr(handler, "_lab_nonce"):
        handler._lab_nonce = secrets.token_urlsafe(18)
    return handler._lab_nonce


def harden() -> None:
    """Change nbgrader's handlers, if this process serves formgrader. A second call does nothing."""
    if f"{PACKAGE}.formgrader" not in sys.modules:
        return
    from nbgrader.server_extensions.formgrader import base, handlers

    if getattr(base.BaseHandler, "hardened", False):
        return
    folder = Path(handlers.template_path)
    templates = Environment(loader=NonceLoader([str(folder)]), autoescape=True)
    scripts = f"'unsafe-hashes' {handler_hashes(folder)} {mathjax.HASH} {mathjax.FOLDER}"

    def policy(handler: Any) -> str:
        return (f"default-src 'none'; script-src 'nonce-{_nonce(handler)}' {scripts}; "
                f"style-src 'self' 'unsafe-inline' {mathjax.FOLDER}; img-src 'self' data:; "
                f"font-src 'self' data: {mathjax.FOLDER}; connect-src 'self'; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'self'")

    def render(handler: Any, name: str, **values: Any) -> str:
        nonce = _nonce(handler)
        if "resources" in values:
            values["resources"] = {**values["resources"], "nonce": nonce}
        return templates.get_template(name).render(nonce=nonce, **values)

    def exporter(handler: Any) -> _WithNonce:
        settings, config = handler.settings, handler.settings["nbgrader_formgrader"].config
        made = settings.get("lab_exporter")
        if made is None or made[0] is not config:
            made = settings["lab_exporter"] = (config, _exporter(folder, config))
        return _WithNonce(made[1], _nonce(handler))

    def plain_headers(handler: Any) -> None:
        super(base.BaseApiHandler, handler).set_default_headers()
        # Some answers are strings of JSON, which tornado would call HTML.
        handler.set_header("Content-Type", "text/plain; charset=UTF-8")

    base.BaseHandler.hardened = True
    base.BaseHandler.content_security_policy = property(policy)
    base.BaseHandler.render = render
    base.BaseHandler.exporter = property(exporter)
    base.BaseApiHandler.content_security_policy = property(lambda handler: NOTHING_RUNS)
    base.BaseApiHandler.set_default_headers = plain_headers
    handlers.SubmissionFilesHandler.content_security_policy = property(
        lambda handler: NOTHING_RUNS)
    handlers.FormgraderHandler.get = _this_course_only(handlers.FormgraderHandler.get)


def _this_course_only(get: Any) -> Any:
    """formgrader opens the course in the folder that its address names, and runs the configuration
    there: a link to a folder of a student's files would run a program of theirs."""
    from tornado import web

    def checked(handler: Any) -> Any:
        wanted = handler.get_argument("path", "")
        root = handler.settings["nbgrader_formgrader"].coursedir.root
        if wanted and os.path.realpath(wanted) != os.path.realpath(root):
            raise web.HTTPError(403, f"this server is for the course in {root} only: start "
                                     "`lab formgrader` in the other course's folder")
        return get(handler)

    return checked
