"""`lab build` warns of imports that give an answer away, and of nothing else."""

from __future__ import annotations

import pytest

from labcore import workspace
from labkit.build.problems import Problems
from labkit.build.reading import read_into
from labkit.build.shortcuts import Recorded, Shortcut, passing, similar, warnings

LAB = workspace.CHECKOUT / "solutions" / "10_pipeline_1.py"
# An exercise that a function of the trainer answers.
EXERCISE = '''# %% answer="bubble"
def bubble(p, m):
    """Return GPipe's bubble fraction."""
    ### BEGIN SOLUTION
    return (p - 1) / (m + p - 1)
    ### END SOLUTION

# %% check="bubble" points=2
check.function(bubble, cases=[(4, 1), (4, 7)], expected=[0.75, 0.3])

'''
BUBBLE = Shortcut("bubble", "minimegatron.formulas", "bubble_fraction")


@pytest.fixture
def unmasked(tmp_path):
    """The lab on pipelines with this exercise, and without the trainer and its schedules among its
    masks."""
    path = tmp_path / LAB.name
    text = LAB.read_text()
    before, rest = text.split('# %% answer="bubble"')
    text = before + EXERCISE + rest[rest.index("# %% [markdown]\n# Each curve"):]
    for masks in ('"minimegatron",', "*check.PIPELINE_LIBRARIES"):
        assert text.count(masks) == 1
        text = text.replace(masks, "")
    path.write_text(text)
    return read_into(path, Problems(path))


def test_what_resembles_an_answer_is_found(unmasked):
    assert BUBBLE in similar(unmasked)


def test_only_what_gives_the_same_results_passes():
    calls = {"bubble": [Recorded((), {"p": 4, "m": 1}, 0.75), Recorded((2, 1), {}, 0.5)]}
    others = [Shortcut("bubble", "minimegatron.formulas", name)
              for name in ("bubble_overhead", "nosuch", "parameters")]
    ends = [Shortcut("bubble", "os", "_exit"), Shortcut("bubble", "signal", "pause")]
    assert passing(calls, [*others, *ends, BUBBLE]) == [BUBBLE]
    assert passing({}, [BUBBLE]) == []


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_build_warns_and_names_the_mask(unmasked):
    (line,) = warnings(unmasked)
    assert "answer bubble: `from minimegatron.formulas import bubble_fraction as bubble`" in line
    assert line.endswith('check.mask("minimegatron.formulas.bubble_fraction")')


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_lab_that_does_not_run_is_said(unmasked):
    unmasked.path.write_text(unmasked.path.read_text().replace("import os\n", "import nosuch\n"))
    (line,) = warnings(unmasked)
    assert "because the lab fails with its own answers: ModuleNotFound" in line
