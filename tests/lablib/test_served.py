"""Links to what the Jupyter server shows, under its base path."""

import json
import os

import pytest

from lablib import jobs, served


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """The page of a server below /user/ada/."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("JPY_PARENT_PID", str(os.getpid()))
    (tmp_path / "runtime").mkdir()
    shown = tmp_path / "shown"
    shown.mkdir()
    (tmp_path / "runtime" / f"jpserver-{os.getpid()}.json").write_text(json.dumps({
        "base_url": "/user/ada/", "url": "http://127.0.0.1:8888/user/ada/",
        "root_dir": str(shown)}))
    return shown


def test_a_file_is_linked_under_the_base_path(folder):
    link = served.file_link(folder / "logs/50% & more_1.txt", "Open <it>")
    assert 'href="/user/ada/files/logs/50%25%20%26%20more_1.txt"' in link._repr_html_()
    assert "Open &lt;it&gt;</a>" in link._repr_html_()
    assert repr(link).endswith("http://127.0.0.1:8888/user/ada/files/logs/50%25%20%26%20more_1.txt")


def test_a_folder_by_another_name_is_the_same(folder, tmp_path):
    (tmp_path / "home").symlink_to(folder)
    assert served.file_link(tmp_path / "home" / "log.txt", "it").target == "files/log.txt"


def test_what_the_server_does_not_show_has_no_link(folder, tmp_path, monkeypatch):
    assert served.file_link(tmp_path / "elsewhere.txt", "it") is None
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "none"))
    assert served.file_link(folder / "log.txt", "it") is None


def test_a_job_that_is_waited_for_links_its_log(folder, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "show", lambda job: jobs.JobState(
        7, "short", "COMPLETED", "", 3, folder / "short_7.txt"))
    jobs.wait(7)
    said = capsys.readouterr().out
    assert "Open the log: http://127.0.0.1:8888/user/ada/files/short_7.txt" in said
