"""tools/bootstrap.py: what it refuses, and when it builds again."""

import importlib.util
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "tools" / "bootstrap.py"


@pytest.fixture
def bootstrap(tmp_path, monkeypatch):
    """The module, over a checkout of its own; it records what it would build."""
    spec = importlib.util.spec_from_file_location("bootstrap", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, path in (("ROOT", ""), ("VENV", ".venv"), ("STAMP", ".venv/complete"),
                       ("LOCK", "requirements.lock")):
        monkeypatch.setattr(module, name, str(tmp_path / path))
    for name in ("requirements.lock", "pyproject.toml"):
        (tmp_path / name).write_text("x==1\n")
    (tmp_path / "code").mkdir()
    module.done = []

    def make_venv(python):
        (tmp_path / ".venv").mkdir(exist_ok=True)
        module.done.append("venv")

    monkeypatch.setattr(module, "make_venv", make_venv)
    monkeypatch.setattr(module, "pip", lambda *words: module.done.append(words[0]))
    module.really_compile = module.compile_packages
    monkeypatch.setattr(module, "compile_packages", lambda: module.done.append("compiled"))
    return module


WHOLE = ["venv", "--upgrade", "--no-compile", "compiled", "--no-build-isolation"]


def test_once_and_never_again(bootstrap):
    bootstrap.ensure_venv()
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE


def test_a_new_lock_installs_into_the_same_environment(bootstrap, tmp_path):
    bootstrap.ensure_venv()
    (tmp_path / "requirements.lock").write_text("x==2\n")
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE + WHOLE[1:]


def test_a_new_package_of_ours_is_installed(bootstrap, tmp_path):
    bootstrap.ensure_venv()
    (tmp_path / "code" / "made.egg-info").mkdir()  # the install's own
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE
    (tmp_path / "code" / "new").mkdir()
    (tmp_path / "code" / "new" / "__init__.py").touch()
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE + WHOLE[1:]


def test_another_python_builds_anew(bootstrap, monkeypatch):
    bootstrap.ensure_venv()
    monkeypatch.setattr(bootstrap, "find_python", lambda: "/another/python")
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE + WHOLE


@pytest.mark.parametrize("step", WHOLE)
def test_an_interruption_at_any_step_is_taken_up(bootstrap, monkeypatch, step):
    def interrupted(*words):
        if not words or step in ("venv", words[0]):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        function = {"venv": "make_venv", "compiled": "compile_packages"}.get(step, "pip")
        patch.setattr(bootstrap, function, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.ensure_venv()
    bootstrap.done.clear()
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE


def test_an_interrupted_update_builds_anew(bootstrap, tmp_path, monkeypatch):
    bootstrap.ensure_venv()
    (tmp_path / "requirements.lock").write_text("x==2\n")
    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "pip", lambda *words: sys.exit(1))
        with pytest.raises(SystemExit):
            bootstrap.ensure_venv()
    bootstrap.done.clear()
    bootstrap.ensure_venv()
    assert bootstrap.done == WHOLE


def test_no_python_that_suits(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap, "suits", lambda python: False)
    with pytest.raises(SystemExit, match=r"no Python 3\.11 to 3\.13 on the PATH") as stopped:
        bootstrap.find_python()
    assert "sudo apt-get install python3.11 python3.11-venv" in str(stopped.value)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_told_of_the_container(bootstrap, monkeypatch, platform):
    monkeypatch.setattr(bootstrap.sys, "platform", platform)
    with pytest.raises(SystemExit, match=rf"needs Linux, and this is {platform}.*container"):
        bootstrap.main()


def test_what_the_course_imports_is_compiled_and_the_rest_is_not(bootstrap, tmp_path):
    packages = tmp_path / ".venv" / "lib" / "python3" / "site-packages"
    for name in ("numpy/linalg", "numpy/tests", "plotly/graph_objs", "transformers/models/gpt2",
                 "transformers/models/bert"):
        (packages / name).mkdir(parents=True)
        (packages / name / "made.py").touch()
    (packages / "template.py").write_text("{{ name }} = 1 +\n")
    (tmp_path / ".venv" / "bin").mkdir()
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    bootstrap.really_compile()
    assert {str(path.relative_to(packages).parents[1]) for path in packages.rglob("*.pyc")} == {
        "numpy/linalg", "transformers/models/gpt2"}
