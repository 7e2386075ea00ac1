"""JupyterLab over a workspace, for a browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import slurmbox as cluster
from lab.jupyter import Jupyter, offline_settings
from labcore import shipping
from tests.browser.prefix import PrefixProxy
from tests.minimegatron.conftest import dataset, train  # noqa: F401  fixtures
from tests.ports import free_port


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        used = {"page", "common_page"} & {*getattr(item, "fixturenames", ())}
        if str(item.path).startswith(here) and used:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def home(chromium: str, tmp_path_factory) -> Path:
    """A workspace without data and without a cluster."""
    home = tmp_path_factory.mktemp("browser") / "workspace"
    shipping.make_workspace(home)
    return home


@pytest.fixture(scope="session")
def make_jupyter(chromium: str) -> Iterator[Callable[..., Jupyter]]:
    """Start JupyterLab over a workspace: make(home, base_url="/", environment={})."""
    started: list[Jupyter] = []

    def make(home: Path, base_url: str = "/", environment: dict[str, str] | None = None) -> Jupyter:
        (home / ".cluster").mkdir(exist_ok=True)
        # All cells are in the page, not only those in view.
        overrides = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}
        settings = offline_settings(home) / "labconfig" / "default_setting_overrides.json"
        settings.write_text(json.dumps(overrides))
        started.append(Jupyter(home, {"LAB_HOME": str(home), **(environment or {})},
                               free_port(), base_url=base_url))
        started[-1].wait_until_ready()
        return started[-1]

    yield make
    for one in started:
        one.ask_to_stop()
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def course_jupyter(course, make_jupyter) -> Jupyter:
    """JupyterLab over the workspace of the common cluster."""
    return make_jupyter(course.home, environment=cluster.environment(course.home))


@pytest.fixture(scope="session")
def proxied(home: Path, make_jupyter) -> Iterator[SimpleNamespace]:
    """JupyterLab over `home` for the user ada: behind a proxy, with nothing else below its host."""
    jupyter = make_jupyter(home, "/user/ada/")
    proxy = PrefixProxy(jupyter.base_url, jupyter.port)
    yield SimpleNamespace(root=proxy.root, token=jupyter.token, refused=proxy.refused)
    proxy.close()
