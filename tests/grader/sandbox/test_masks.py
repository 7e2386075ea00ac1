"""Masked names are not in a lab's sandbox: not as a module, not as text, not compiled."""

from __future__ import annotations

import py_compile
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from grader.sandbox import mounts
from grader.sandbox.interface import Limits
from grader.sandbox.masks import SandboxMasks, rewritten
from grader.sandbox.podman import Podman
from grader.sandbox.unisolated import Unisolated
from labcore.workspace import CHECKOUT, CODE
from labkit import masks
from labkit.masks import MaskTarget, UnknownName, mask_targets, message
from tests.grader.sandbox.conftest import finish
from tests.needs import needs

CALL = re.compile(r"check\.mask\((.*?)\)", re.DOTALL)
OF_TORCH = re.compile(r'"(torch\.[\w.]+)"')
TEXT = '''"""A module."""
import functools
LIMIT = 5


class Wide:
    def forward(self, x):
        return "secret-method"

    def backward(self, x):
        return x


@functools.cache
def answer(x):
    """secret-docstring"""
    return x * LIMIT  # secret-body


try:
    import missing
except ImportError:
    def fallback(x):
        return "secret-fallback"
TABLE = {"secret": 1}
'''


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """A package `held` with one module, compiled, and one that imports from it."""
    folder = tmp_path / "code" / "held"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("from held.module import answer as exported\n")
    (folder / "module.py").write_text(TEXT)
    (folder / "other.py").write_text("from held.module import *\nVALUE = 3\n")
    for path in folder.glob("*.py"):
        py_compile.compile(str(path))
    monkeypatch.setattr(masks, "roots", lambda: (tmp_path / "code",))
    return folder


def seen(package: Path, program: str, *names: str) -> str:
    """Return the output of a program that runs with `names` masked, without a sandbox."""
    masks, copy = SandboxMasks(names), package.parents[1] / "view"
    shutil.copytree(package.parent, copy)
    for original, replacement in masks.shown.items():
        place = copy / Path(original).relative_to(package.parent)
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        (shutil.copytree if Path(replacement).is_dir() else shutil.copy2)(replacement, place)
    done = subprocess.run([sys.executable, "-I", "-B", "-c",
                           f"import sys; sys.path.insert(0, {str(copy)!r})\n{program}"],
                          capture_output=True, text=True)
    return done.stdout + done.stderr


def secrets(package: Path) -> list[str]:
    """The files of the view in which something is left of what was masked."""
    return [path.name for path in (package.parents[1] / "view").rglob("*.py*")
            if b"secret" in path.read_bytes()]


def test_a_module_raises_and_so_does_all_that_imports_it(package):
    said = seen(package, "try:\n    import held\nexcept ImportError as error:\n    print(error)",
                "held.module")
    assert said.strip() == message("held.module") and not secrets(package)


def test_a_package_is_one_file(package):
    said = seen(package, "import held.other", "held")
    assert said.strip().endswith(message("held")) and "held.other" not in said.split("\n")[-1]


def test_names_are_stubs_and_the_rest_works(package):
    program = """
from held import exported
from held.other import Wide, LIMIT, VALUE, fallback, TABLE
print(LIMIT, VALUE, Wide().backward(7), issubclass(Wide, object))
for use in (lambda: exported(1), lambda: Wide().forward(1), lambda: fallback(1),
            lambda: TABLE["x"], lambda: list(TABLE)):
    try:
        print("used:", use())
    except ImportError as error:
        print(error)
"""
    names = ("held.exported", "held.other.Wide.forward", "held.module.fallback",
             "held.module.TABLE")
    said = seen(package, program, *names).splitlines()
    assert not secrets(package)
    assert said == ["5 3 7 True", *map(message, names), message("held.module.TABLE")]


def test_a_whole_class_can_still_be_derived_from(package):
    program = "from held.module import Wide\nclass Mine(Wide): pass\nMine()"
    assert seen(package, program, "held.module.Wide").strip().endswith(message("held.module.Wide"))


def test_what_compiled_code_defines_is_bound_anew(package):
    (package / "module.py").write_text(TEXT.replace("import functools", "import functools\n"
                                                    "from math import hypot"))
    assert mask_targets("held.module.hypot")[0].defined is False
    said = seen(package, "from held.module import hypot; hypot(3, 4)", "held.module.hypot")
    assert said.strip().endswith(message("held.module.hypot"))


def test_nothing_shows_up_that_is_compiled_later(package):
    shutil.rmtree(package / "__pycache__")
    masks = SandboxMasks(["held.module"])
    assert str(package / "__pycache__") in masks.shown and (package / "__pycache__").is_dir()


def test_only_what_is_installed_can_be_unknown(package):
    assert mask_targets("not_installed_here.module") == []
    with pytest.raises(UnknownName, match="it is not defined in a Python file"):
        mask_targets("math.hypot")


@pytest.mark.parametrize(("name", "module", "qualname"), [
    ("torch.distributed.all_reduce", "torch.distributed.distributed_c10d", "all_reduce"),
    ("torch.nn.parallel.DistributedDataParallel", "torch.nn.parallel.distributed",
     "DistributedDataParallel"),
    ("torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint", "checkpoint"),
    ("pipeline_schedules.one_f_one_b", "pipeline_schedules.builtin", "one_f_one_b")])
def test_a_name_is_followed_to_its_definition(name, module, qualname):
    (place, *_) = mask_targets(name)
    assert (place.module, place.qualname, place.defined) == (module, qualname, True)
    text = rewritten(place.path, [place])
    compile(text, str(place.path), "exec")
    assert text.count(message(name)) == 1
    assert not re.search(rf"^(def|class) {qualname}\b(?!\(\*args, \*\*kwargs\):|:)", text, re.M)


def test_a_masked_path_is_replaced_wherever_it_is_shown(tmp_path):
    code, prefix = tmp_path / "labs" / "code", tmp_path / "prefix"
    code.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "labs")
    prefix.mkdir()
    view = mounts.visible(1, [str(prefix)], tmp_path / "link" / "code", tmp_path / "labs",
                          tmp_path / "grader", {f"{code}/held.py": "/made/held.py"})
    assert {where for where, source in view.binds if source == "/made/held.py"} == \
        {f"{code}/held.py", f"{tmp_path}/link/code/held.py"}


PROGRAM = f"""
import sys
import tempfile
sys.path.insert(0, {str(CODE)!r})
for name in ("minimegatron.formulas", "pipeline_schedules"):
    try:
        module = __import__(name, fromlist=["gpipe"])
        print(module.gpipe(2, 2))
    except ImportError as error:
        print(error)
import pipeline_schedules as schedules
print(schedules.to_text(schedules.one_f_one_b(1, 1)))
for path in (r"{CODE}/minimegatron/formulas.py", r"{CODE}/pipeline_schedules/builtin.py"):
    print("def bubble_fraction" in open(path).read(), "def gpipe(*args" in open(path).read())
"""
MASKED = ("minimegatron.formulas", "pipeline_schedules.gpipe")
SEEN = [*map(message, MASKED), "['F0 B0']", "False False", "False True"]


def test_the_sandbox_has_it_so(python):
    done = python(PROGRAM, masks=SandboxMasks(MASKED))
    assert done.out.split("\n")[:-1] == SEEN, done.noise


@pytest.mark.slow
@needs("podman")
def test_podman_has_it_so():
    done = finish(Podman(), [sys.executable, "-I", "-c", PROGRAM], masks=SandboxMasks(MASKED))
    assert done.out.split("\n")[:-1] == SEEN, done.noise


TORCH = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
for use in (lambda: dist.all_reduce(torch.ones(1)), lambda: dist.distributed_c10d.all_reduce(1),
            lambda: DistributedDataParallel(torch.nn.Linear(1, 1)), lambda: checkpoint(len, [])):
    try:
        print("used:", use())
    except ImportError as error:
        print(error)
print(torch.nn.functional.mse_loss(torch.ones(2), torch.zeros(2)).item())
"""


@pytest.mark.slow
def test_torchs_own_are_masked_too(python):
    names = ("torch.distributed.all_reduce", "torch.nn.parallel.DistributedDataParallel",
             "torch.utils.checkpoint.checkpoint")
    done = python(TORCH, Limits(), masks=SandboxMasks(names))
    assert done.out.splitlines() == [*(message(names[n]) for n in (0, 0, 1, 2)), "1.0"], done.noise


def test_covers_what_is_inside():
    module, name = MaskTarget("a.b", Path(), "a.b"), MaskTarget("a.C", Path(), "a", "C")
    assert module.covers("a.b", "f") and module.covers("a.b.c", "")
    assert name.covers("a", "C.forward")
    assert not any((module.covers("a.bc", ""), name.covers("a", "CD"), name.covers("b", "C")))


def test_another_user_can_read_what_is_shown_in_place_of_a_masked_file(package):
    """If root has no rights over the machine, bwrap starts as an ordinary user."""
    masks = SandboxMasks(["held.module.answer", "held.other"])
    for shown in map(Path, masks.shown.values()):
        assert shown.stat().st_mode & 0o004
        for above in shown.parents[:len(shown.parts) - len(Path(tempfile.gettempdir()).parts) - 1]:
            assert above.stat().st_mode & 0o001, above


def test_torch_and_virtual_gpus_work_with_all_that_labs_mask_in_torch(tmp_path):
    """A lab that masks a module which torch itself imports could not be graded."""
    names = sorted({name for path in (CHECKOUT / "solutions").glob("*.py")
                    for call in CALL.findall(path.read_text()) for name in OF_TORCH.findall(call)})
    program = ("import torch, virtualgpu\n"
               "def step():\n"
               "    x = torch.ones(2, 2, device='cuda', requires_grad=True)\n"
               "    (x @ x).sum().backward()\n"
               "    return torch.cuda.max_memory_allocated()\n"
               "(rank,) = virtualgpu.run(step, 'h100:1')\n"
               "print(rank.error or rank.value > 0)\n")
    ended = finish(Unisolated(tmp_path), [sys.executable, "-c", program],
                   masks=SandboxMasks(names))
    assert len(names) > 5 and (ended.out, ended.noise, ended.code) == ("True\n", "", 0)
