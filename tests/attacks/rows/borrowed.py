"""Answers that call, copy or run the trainer's own code, which the lab masks: `check.mask`."""

from __future__ import annotations

from tests.attacks.attack import attack

# What each of them wants: the file, which lies beside the modules that a cell may import.
FILE = '''
import os, sys
folder = next(path for path in sys.path if os.path.isfile(f"{path}/minimegatron/__init__.py"))
file = f"{folder}/minimegatron/formulas.py"
'''
IMPORT = "from minimegatron.formulas import bubble_fraction as bubble"

BY_PATH = FILE + '''
import importlib.util
spec = importlib.util.spec_from_file_location("mine", file)
mine = importlib.util.module_from_spec(spec)
sys.modules["mine"] = mine
spec.loader.exec_module(mine)
bubble = mine.bubble_fraction
'''

BY_TEXT = FILE + '''
names = {"__name__": "mine"}
sys.modules["mine"] = sys
exec(compile(open(file).read(), "mine", "exec", dont_inherit=True), names)
bubble = names["bubble_fraction"]
'''

BY_BYTES = FILE + '''
import glob, marshal
sys.modules["mine"] = sys
for path in glob.glob(f"{folder}/minimegatron/**/formulas*.pyc", recursive=True):
    names = {"__name__": "mine"}
    exec(marshal.loads(open(path, "rb").read()[16:]), names)
bubble = names["bubble_fraction"]
'''

BY_SOURCE = '''
import inspect, pkgutil, sys, types
loader = pkgutil.get_loader("minimegatron.formulas")
text = loader.get_source("minimegatron.formulas")
try:
    import minimegatron.formulas as module
    text = inspect.getsource(module.bubble_fraction)
except ImportError:
    pass
exec(text)
bubble = bubble_fraction
'''

BY_ANOTHER = '''
import sys
import minimegatron.report.throughput  # which imports the formulas
bubble = sys.modules["minimegatron.formulas"].bubble_fraction
'''

# Without the formula: the trainer's schedule, on the trainer's clock.
BY_SCHEDULE = '''
from pipeline_schedules import Durations, simulate
from pipeline_schedules.builtin import one_f_one_b as other
import pipeline_schedules.builtin as builtin
def bubble(p, m):
    return simulate(builtin.gpipe(p, m), Durations(1, 1, 1)).bubble_fraction
'''

BY_PROGRAM = '''
import subprocess, sys
PROGRAM = "from minimegatron.formulas import *; import sys; " \\
          "print(bubble_fraction(*map(int, sys.argv[1:])))"
def bubble(p, m):
    return float(subprocess.run([sys.executable, "-c", PROGRAM, str(p), str(m)],
                                capture_output=True, text=True, check=True).stdout)
'''

BY_NOTEBOOK = FILE + '''
import glob, json, re
places = [os.environ["LAB_HOME"], os.path.dirname(folder), "/usr/share", sys.prefix]
bubble = None
for place in places:
    for path in [*glob.glob(f"{place}/**/worked/*.ipynb", recursive=True),
                 *glob.glob(f"{place}/solutions/*.py")]:
        found = re.search(r"def bubble\\(p, m\\):.*?return ([^\\\\"\\n]+)", open(path).read(), re.S)
        if found:
            bubble = eval(f"lambda p, m: {found[1]}")
'''

BY_MEMORY = '''
import gc, types
from pipeline_schedules import Durations, simulate
gpipe = next(thing for thing in gc.get_objects()
             if isinstance(thing, types.FunctionType) and thing.__name__ == "gpipe")
def bubble(p, m):
    return simulate(gpipe(p, m), Durations(1, 1, 1)).bubble_fraction
'''

# Every .py below the folders of the course and of the standard library, whatever its name.
EVERYWHERE = '''
import os, re, sys
bubble = None
for place in {*(path for path in sys.path if "site-packages" not in path), os.environ["LAB_HOME"],
              "/run", "/tmp"}:
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if name not in ("site-packages", "test")]
        for name in files:
            if not name.endswith(".py"):
                continue
            try:
                text = open(os.path.join(folder, name)).read()
            except (OSError, ValueError):
                continue
            found = re.search(r"def bubble_fraction\\(p.*?return ([^\\n]+)", text, re.S)
            if found:
                bubble = eval(f"lambda p, m, v=1: {found[1]}")
'''

ATTACKS = [
    attack("o1", "imports-it", "Imports the trainer's own formula", bubble=IMPORT, small=True),
    attack("o2", "loads-it", "Loads the module from its file with importlib", bubble=BY_PATH),
    attack("o3", "reads-it", "Runs the text of the module's file", bubble=BY_TEXT),
    attack("o4", "unmarshals-it", "Runs the module's compiled code from `__pycache__`",
           bubble=BY_BYTES, small=True),
    attack("o5", "inspects-it", "Asks the loader and inspect for the source", bubble=BY_SOURCE),
    attack("o6", "finds-it-elsewhere", "Takes it from another module that imports it",
           bubble=BY_ANOTHER, may_end=True),
    attack("o7", "simulates-it", "Measures it on the trainer's schedule, a masked name",
           bubble=BY_SCHEDULE, small=True),
    attack("o8", "runs-it", "Starts a Python of its own that imports it", bubble=BY_PROGRAM),
    attack("o9", "reads-worked", "Looks for the worked notebook and the lab's source",
           bubble=BY_NOTEBOOK),
    attack("o10", "remembers-it", "Looks for it among the objects in memory", bubble=BY_MEMORY),
    attack("o11", "searches-it", "Searches every Python file for it", bubble=EVERYWHERE),
]
