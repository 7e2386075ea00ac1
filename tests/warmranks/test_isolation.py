"""What a rank can still do once it is closed off."""

from __future__ import annotations

import os
import platform

import pytest

from warmranks import isolation, run_ranks
from warmranks.filters import MACHINES

from . import isolated

pytestmark = pytest.mark.slow


def test_a_rank_reaches_nothing_but_its_channel(tmp_path):
    (tmp_path / "there").write_text("text")
    found = run_ranks(isolated.tries_everything, 1, str(tmp_path), os.getpid(), backend=None)[0]
    wrong = {name: outcome for name, outcome in found["refused"].items()
             if outcome not in ("PermissionError", "ENOSYS")}
    assert not wrong and len(found["refused"]) == len(isolated.REFUSED)
    assert found["allowed"] == dict.fromkeys(isolated.ALLOWED, "ok")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


def test_one_rank_cannot_open_another_ones_memory():
    first, second = run_ranks(isolated.looks_at_the_other, 2, backend="gloo")
    if not first["landlock"]:
        pytest.skip("this kernel has no Landlock, and ranks of one user can read each other")
    assert {first["mem"], first["fd"], second["mem"], second["fd"]} == {"PermissionError"}


@pytest.mark.parametrize("machine", MACHINES)
def test_there_is_a_filter_for_every_machine(machine):
    assert len(isolation.program(1, machine)) % 8 == 0
    assert isolation.program(1, machine) != isolation.program(2, machine)


def test_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "vax")
    with pytest.raises(OSError, match="ranks cannot be isolated on vax: x86_64, aarch64"):
        isolation.program(1)
