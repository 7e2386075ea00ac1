"""Links to files of the repository that are no pages of the site.

They are written for a repository's web view. On the site they lead there where its address is known
(REPO_URL), and are plain text otherwise: a link that leads nowhere helps nobody.
"""

from __future__ import annotations

import posixpath
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor

from docs_site import ROOT


def target_of(page: str, address: str) -> str | None:
    """The repository's path that a relative link on `page` (a path, too) leads to, if any."""
    parts = urlsplit(address)
    if parts.scheme or parts.netloc or not parts.path or parts.path.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
    return path if not path.startswith("..") and (ROOT / path).exists() else None


class SourceLinks(Extension):
    """`page` and `pages` are set before each page: where the links stand, and what the site has."""

    def __init__(self, repository: str) -> None:
        super().__init__()
        self.repository = repository.rstrip("/")
        self.page = ""
        self.pages: Any = ()

    def extendMarkdown(self, md: Markdown) -> None:
        # After the inline parser (20) made the links, before MkDocs (0) resolves them.
        md.treeprocessors.register(_Links(self), "source-links", 5)

    def change(self, link: Element) -> None:
        path = target_of(self.page, link.get("href", ""))
        if path is None or path in self.pages:
            return
        if self.repository:
            link.set("href", f"{self.repository}/blob/HEAD/{path}")
        else:
            link.tag, link.attrib = "span", {}


class _Links(Treeprocessor):
    def __init__(self, extension: SourceLinks) -> None:
        super().__init__()
        self.extension = extension

    def run(self, root: Element) -> None:
        for link in list(root.iter("a")):
            self.extension.change(link)
