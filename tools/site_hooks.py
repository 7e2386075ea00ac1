"""Hooks that MkDocs calls while it builds the site: see mkdocs.yml and docs/site.md.

Every page keeps the path that it has in the repository, so links between files work as they are.
"""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs_site import ASSETS, LABS, PAGES, ROOT, STATIC, flags, formulas, labs, links, matching

SOURCE_LINKS = "source_links"  # among config.extra


class Lab(File):
    """A notebook that is a page, made by labs.to_markdown."""

    def is_documentation_page(self) -> bool:
        return True


def nav_of_labs() -> list[dict[str, str]]:
    return [{labs.title_of(ROOT / path): path} for path in matching(LABS)]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    for entry in config.nav:
        for section, value in entry.items():
            if value == "LABS":
                entry[section] = nav_of_labs()
    config.extra[SOURCE_LINKS] = links.SourceLinks(config.extra["source"])
    config.markdown_extensions.append(config.extra[SOURCE_LINKS])
    if config.extra["source"]:
        config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "name": "Source",
                                   "link": config.extra["source"]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All that is ours, in place of what MkDocs found in docs_dir, whose paths begin in there."""
    def there(path: str, uri: str = "") -> File:
        return File.generated(config, uri or path, abs_src_path=str(ROOT / path))

    found = [there(path) for path in matching(*PAGES, "docs/**/*.md", *STATIC)]
    found += [there(f"tools/docs_site/{name}", f"assets/{name}") for name in ASSETS]
    for path in matching(LABS):
        text = labs.to_markdown((ROOT / path).read_text(), path)
        found.append(Lab.generated(config, path, content=text))
        found.append(there(path, f"notebooks/download/{path.rpartition('/')[2]}"))
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *found])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = config.extra[SOURCE_LINKS]
    here.page, here.pages = page.file.src_uri, files.src_uris
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    try:
        return flags.kept_whole(formulas.replace_in(html))
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error
