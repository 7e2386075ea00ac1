"""What a notebook draws for its student."""

from lablib import personal


def drawn(monkeypatch, home, name="log"):
    monkeypatch.setenv("LAB_HOME", str(home))
    return [personal.dice(name).randrange(10**9) for _ in range(2)]


def test_a_workspace_draws_the_same_numbers_again_and_another_one_does_not(monkeypatch, tmp_path):
    mine = drawn(monkeypatch, tmp_path / "mine")
    assert mine[0] == mine[1] == drawn(monkeypatch, tmp_path / "mine")[0]
    assert mine[0] != drawn(monkeypatch, tmp_path / "yours")[0]
    assert mine[0] != drawn(monkeypatch, tmp_path / "mine", "plan")[0]
