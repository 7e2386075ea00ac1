"""The documentation's site, from the repository's own files: labs, links and formulas."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ("iframe-worker.js", "site.css")  # beside this file
# What the site holds besides the labs and docs/: patterns of paths in the repository.
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docker/README.md",
         "benchmarks/results/*.md")
STATIC = ("images/*.svg", "docs/pictures/*.png")
LABS = "notebooks/*.ipynb"


def matching(*patterns: str) -> list[str]:
    """The repository's files of these patterns, as paths relative to it, in order."""
    return [path.relative_to(ROOT).as_posix()
            for pattern in patterns for path in sorted(ROOT.glob(pattern))]
