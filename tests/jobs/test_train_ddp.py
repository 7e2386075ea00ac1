"""Arguments that train_ddp.py rejects before the rendezvous. Lab 04's tests train with it."""

import runpy
import sys

import pytest
import torch.distributed as dist

from labcore import workspace


def end_of(monkeypatch, capsys, *arguments: str) -> str:
    """Return what the program prints when it refuses to start."""
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", *arguments])
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(workspace.CODE / "jobs" / "train_ddp.py"), run_name="__main__")
    assert ended.value.code not in (None, 0)
    return f"{ended.value.code} {capsys.readouterr().err}"


def test_without_a_workspace_it_says_what_to_set(monkeypatch, capsys):
    monkeypatch.delenv("LAB_HOME", raising=False)
    assert "LAB_HOME is not set" in end_of(monkeypatch, capsys, "--checkpoint", "x")


@pytest.mark.parametrize(("arguments", "says"), [
    ([], "required: --checkpoint"), (["--checkpoint", "x", "--step", "many"], "--step"),
    (["--checkpoint", "x", "--log-interval", "0"], "--log-interval 0: give a number of steps")])
def test_wrong_arguments_are_an_error_before_the_ranks_meet(tmp_path, monkeypatch, capsys,
                                                            arguments, says):
    (tmp_path / "mytrainer").mkdir()
    (tmp_path / "mytrainer" / "ddp.py").write_text("DataParallel = None\n")
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    for name in ("mytrainer", "mytrainer.ddp"):  # those of another test
        monkeypatch.delitem(sys.modules, name, raising=False)

    def meets(*_):
        raise AssertionError("the ranks meet")

    monkeypatch.setattr(dist, "init_process_group", meets)
    try:
        assert says in end_of(monkeypatch, capsys, *arguments)
    finally:
        for name in ("mytrainer", "mytrainer.ddp"):
            sys.modules.pop(name, None)
