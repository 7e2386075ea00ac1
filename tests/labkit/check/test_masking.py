"""Masks in a kernel: what a sandbox would refuse fails its check there, too; the rest passes."""

from __future__ import annotations

import statistics
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labkit import check
from labkit.check import sides
from labkit.check.kernel import KernelSide
from labkit.check.masking import KernelMasks
from labkit.masks import UnknownName, mask_targets, message

MASKED = ("minimegatron.formulas", "pipeline_schedules.gpipe")
FORMULAS = message("minimegatron.formulas")
HONEST = "def bubble(p, m):\n    return (p - 1) / (m + p - 1)"


@pytest.fixture
def kernel(monkeypatch):
    """Runs cells as a notebook does, then a check of `bubble`; returns why it failed."""
    monkeypatch.setattr(sides, "_current", KernelSide())
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    check.mask(*MASKED)

    def run(*cells: str) -> str:
        for cell in cells:
            shell.run_cell(cell, store_history=True).raise_error()
        try:
            check.function(shell.user_ns["bubble"], cases=[{"p": 4, "m": 1}], expected=[0.75])
        except check.Failed as error:
            return str(error)
        return ""

    yield run
    InteractiveShell.clear_instance()


@pytest.mark.parametrize("answer", [
    "from minimegatron.formulas import bubble_fraction as bubble",
    "import functools\nfrom minimegatron.formulas import bubble_fraction\n"
    "bubble = functools.partial(bubble_fraction, v=1)",
    "def bubble(p, m):\n    from minimegatron import formulas\n"
    "    return formulas.bubble_fraction(p, m)",
    "import importlib\ndef bubble(p, m):\n"
    "    return importlib.import_module('minimegatron.formulas').bubble_fraction(p, m)",
    "import minimegatron.formulas\n" + HONEST,  # the sandbox stops at the import
    "from minimegatron import formulas\ndef mine(p, m):\n    return formulas.bubble_fraction(p, m)"
    "\nclass Mine:\n    @staticmethod\n    def of(p, m):\n        return mine(p, m)"
    "\ndef bubble(p, m):\n    return Mine.of(p, m)"],
    ids=["import", "partial", "inside", "importlib", "unused", "helpers"])
def test_an_answer_that_uses_it_fails_as_in_the_sandbox(kernel, answer):
    assert kernel(answer).endswith(f"raised ImportError: {FORMULAS}")


@pytest.mark.parametrize("cells", [
    (HONEST,), ("from minimegatron.formulas import bubble_fraction; bubble_fraction(2, 2)", HONEST),
    (HONEST, "from pipeline_schedules import gpipe, simulate; simulate(gpipe(2, 2))"),
    ("%%time\nimport minimegatron.formulas", f"%%time\n{HONEST}")],
    ids=["alone", "explored before", "explored after", "magics"])
def test_an_honest_answer_passes_beside_cells_that_explore(kernel, cells):
    assert kernel(*cells) == ""


def test_a_name_is_masked_whichever_way_leads_to_it(kernel):
    said = kernel("from pipeline_schedules import simulate\n"
                  "from pipeline_schedules import builtin\n"
                  "def bubble(p, m):\n    return simulate(builtin.gpipe(p, m)).bubble_fraction")
    assert said.endswith(message("pipeline_schedules.gpipe"))


def test_what_compiled_code_defines_is_noticed(kernel):
    import math

    assert statistics.sqrt is math.sqrt
    assert check.mask("statistics.sqrt") is None  # which statistics imports from math
    assert kernel("import math\ndef bubble(p, m):\n    return math.sqrt(0.5625)").endswith(
        message("statistics.sqrt"))
    assert math.sqrt(4) == 2


def goes_on():
    trace = sys.gettrace()
    try:
        return statistics.mean([1, 2])
    except BaseException:
        sys.settrace(trace)
    try:
        return statistics.median([1, 2])
    except BaseException:
        return 1.5


def raises_its_own():
    try:
        return statistics.mean([1, 2])
    except BaseException:
        raise ValueError from None


@pytest.mark.parametrize("answer", [goes_on, raises_its_own])
def test_an_answer_that_catches_its_end_is_refused(answer):
    before = sys.gettrace(), sys.getprofile()
    refused = KernelMasks(["statistics.mean"]).watched(answer, answer)
    assert refused == sides.Raised(("ImportError", "Exception", "BaseException"),
                                   message("statistics.mean"))
    assert (sys.gettrace(), sys.getprofile()) == before


def test_an_answer_s_first_import_of_masked_code_is_complete(monkeypatch):
    monkeypatch.delitem(sys.modules, "statistics")

    def answer():
        from statistics import mean
        return mean([1, 2])

    refused = KernelMasks(["statistics"]).watched(answer, answer)
    assert refused.text == message("statistics") and "median" in vars(sys.modules["statistics"])


@pytest.mark.parametrize("around", [
    "if 0:\n {}\nelif 1:\n pass", "if 0:\n pass\nelse:\n {}", "for _ in ():\n pass\nelse:\n {}",
    "try:\n {}\nfinally:\n pass", "try:\n pass\nexcept OSError:\n {}",
    "try:\n pass\nexcept* OSError:\n {}", "try:\n pass\nfinally:\n {}", "with open('x'):\n {}",
    "class A:\n def f(self):\n  while 1:\n   {}", "async def f():\n async with f():\n  {}",
    "match 1:\n case 1:\n  {}"])
def test_an_import_is_seen_in_every_statement(around):
    masks = KernelMasks(["minimegatron.formulas"])
    cell = around.format("from minimegatron import formulas as f")
    assert [*masks.imported(cell)] == ["minimegatron.formulas"]
    assert [*masks.imported(around.format("import minimegatron"))] == []


def test_without_masks_nothing_is_watched(kernel):
    check.mask()
    assert kernel("from minimegatron.formulas import bubble_fraction as bubble") == ""


@pytest.mark.parametrize(("name", "module"), [
    ("pipeline_schedules.gpipe", "pipeline_schedules.builtin"),
    ("virtualgpu.mark_step", "virtualgpu.export.ledger"),
    ("labkit.check.script", "labkit.check.scripts")])
def test_a_name_that_a_package_imports_on_first_use_is_found(name, module):
    (target,) = mask_targets(name)
    assert (target.module, target.defined) == (module, True)


def test_a_name_that_the_course_does_not_define_is_an_error():
    with pytest.raises(UnknownName, match=r"__init__\.py does not say where"):
        mask_targets("pipeline_schedules.gpip")


def test_what_has_no_python_file_is_an_error_and_what_is_not_installed_is_not(kernel):
    with pytest.raises(UnknownName, match=r"math\.hypot cannot be masked"):
        check.mask("math.hypot")
    check.mask("not_installed_here.module")
    assert kernel(HONEST) == ""
