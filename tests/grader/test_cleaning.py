"""What a student may read of the machine that graded."""

from __future__ import annotations

import json
import sys
import sysconfig

import pytest

from grader import cleaning
from labcore.workspace import CHECKOUT

SITE = sysconfig.get_paths()["purelib"]


@pytest.mark.parametrize("path, shown", [
    (f"{CHECKOUT}/code/labkit/check/x.py", "code/labkit/check/x.py"),
    (f"{SITE}/torch/nn.py", "site-packages/torch/nn.py"),
    (f"{sys.base_prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/json/x.py",
     f"python{sys.version_info.major}.{sys.version_info.minor}/json/x.py"),
    ("/srv/cs336/course/submitted/ada", "course/submitted/ada"),
    (f"{CHECKOUT}-2/x.py", f"{CHECKOUT}-2/x.py"), ("/tmp/own.py", "/tmp/own.py")])
def test_no_output_names_the_instructors_folders(monkeypatch, path, shown):
    monkeypatch.setenv("LAB_COURSE", "/srv/cs336/course")
    text = f'  File "{path}", line 3, in f\nOSError: {path}'
    expected = text.replace(path, shown)
    stream, error = cleaning.outputs([
        {"output_type": "stream", "name": "stderr", "text": text},
        {"output_type": "error", "ename": "OSError", "evalue": text,
         "traceback": text.split("\n")}])
    assert stream.text == expected == error.evalue
    assert "\n".join(error.traceback) == expected
    data = cleaning.outputs([{"output_type": "display_data", "data": {"text/plain": text}}])
    assert path == shown or path not in json.dumps(data)
