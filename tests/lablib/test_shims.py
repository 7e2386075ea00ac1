"""lablib.shims: another version, or a name that is gone, is said and not passed over."""

from types import SimpleNamespace

import pytest

from labcore.errors import LabError
from lablib import shims


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(shims, "version", lambda library: "0.0.8")
    with pytest.raises(LabError, match=r"torchgpipe 0\.0\.8 is installed, .* for 0\.0\.7"):
        shims.require("torchgpipe", "0.0.7")


def test_the_right_version_is_taken_whatever_its_build(monkeypatch):
    monkeypatch.setattr(shims, "version", lambda library: "0.19.8+cpu")
    shims.require("deepspeed", "0.19.8")


def test_replacing_returns_what_was_there():
    owner = SimpleNamespace(__name__="owner", work=1)
    assert shims.replace(owner, "work", 2) == 1 and owner.work == 2


def test_what_is_gone_is_not_replaced():
    owner = SimpleNamespace(__name__="torchgpipe.pipeline")
    with pytest.raises(LabError, match=r"torchgpipe\.pipeline has no spawn_workers"):
        shims.replace(owner, "spawn_workers", print)
    assert not hasattr(owner, "spawn_workers")
