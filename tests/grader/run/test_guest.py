"""The guest in a sandbox, driven through frames, behaves like the notebook's kernel."""

from __future__ import annotations

import base64
import time

import pytest

from grader.run.channel import Channel, SandboxDied
from grader.run.remote import as_raised
from grader.sandbox.interface import Limits
from grader.sandbox.mounts import python
from labkit.check import wire
from labkit.guest import protocol
from labkit.guest.capture import MOST_BYTES, Capture
from tests.grader.plain import Plain

SECONDS = 60


class Asked(Channel):
    """A channel with the few requests of these tests by name."""

    def cell(self, source: str) -> dict:
        return self.request("cell", SECONDS, source=source)

    def outputs(self, source: str) -> list[dict]:
        return self.cell(source)["outputs"]

    def call(self, name: str, *arguments, **keywords) -> dict:
        return self.request("call", SECONDS, name=name, arguments=wire.dumps(arguments).decode(),
                            keywords=wire.dumps(keywords).decode())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    backend = Plain(tmp_path_factory.mktemp("homes"))
    yield backend
    backend.end()


@pytest.fixture
def fresh(plain) -> Asked:
    return Asked(plain.start(python("labkit.guest"), Limits()))


@pytest.fixture(scope="module")
def guest(plain) -> Asked:
    """Shared: cells here bind no name of another test's."""
    return Asked(plain.start(python("labkit.guest"), Limits()))


def stream(text: str, name: str = "stdout") -> dict:
    return {"output_type": "stream", "name": name, "text": text}


@pytest.mark.parametrize(("source", "printed"), [
    ("print('a'); print('b')", "a\nb\n"),
    ("!echo to $((1 + 1))", "to 2\n"),
    ("found = !echo one; echo two\nprint(found)", "['one', 'two']\n"),
    ("import os\nos.write(1, b'raw\\n');", "raw\n"),
    ("print('before')\n!echo between\nprint('after')", "before\nbetween\nafter\n"),
    ("import os\nfor _ in range(200):\n    os.write(1, b'program\\n')\n    print('python')",
     "program\npython\n" * 200),
    ("import subprocess\nsubprocess.run(['echo', 'sub']);", "sub\n"),
    ("import ctypes\nctypes.CDLL(None).printf(b'from C\\n');", "from C\n"),
    ("%%bash\necho from bash", "from bash\n"),
    ("import asyncio\nprint(await asyncio.sleep(0, 'awaited'))", "awaited\n"),
    ("import asyncio\nlater = asyncio.create_task(asyncio.sleep(0))\nprint('made')", "made\n"),
    ("print(__name__, get_ipython() is not None)", "__main__ True\n"),
    ("import threading\none = threading.Thread(target=print, args=['thread'])\none.start()\n"
     "one.join()", "thread\n"),
    ("import multiprocessing\nmade = multiprocessing.Process(target=print, args=['child'])\n"
     "made.start()\nmade.join()", "child\n"),
    ("from IPython.display import clear_output\nprint('gone')\nclear_output()\nprint('kept')",
     "kept\n"),
    ("import sys\nprint(sys.stdin.read(), sys.stdout.isatty())", " False\n"),
    ("from pathlib import Path\nprint(Path.cwd().name, sorted(p.name for p in "
     "Path().iterdir() if p.name in ('code', 'data')))", "workspace ['code', 'data']\n"),
    ("%%capture caught\nprint('x')", ""),
    ("%cd -q code\n%cd -q ..\nprint('magics')", "magics\n"),
])
def test_what_is_printed_is_an_output_however_it_is_printed(guest, source, printed):
    assert guest.outputs(source) == ([stream(printed)] if printed else [])


def test_results_displays_figures_and_errors_are_outputs(guest):
    (result,) = guest.outputs("1 + 1")
    assert (result["output_type"], result["data"]) == ("execute_result", {"text/plain": "2"})
    (shown,) = guest.outputs("from IPython.display import HTML\ndisplay(HTML('<b>x</b>'))")
    assert (shown["output_type"], shown["data"]["text/html"]) == ("display_data", "<b>x</b>")
    response = guest.cell("print('first')\n1 / 0")
    assert response["outputs"][0] == stream("first\n")
    assert response["outputs"][1]["ename"] == "ZeroDivisionError"
    assert "division by zero" in response["outputs"][1]["traceback"][-1]
    assert response["error"]["names"][:2] == ["ZeroDivisionError", "ArithmeticError"]
    (broken,) = guest.outputs("def f(:")
    assert broken["ename"] == "SyntaxError"
    assert guest.outputs("import sys\nprint('noise', file=sys.stderr)") == [
        stream("noise\n", "stderr")]


@pytest.mark.slow
def test_a_figure_is_shown_at_the_end_of_its_cell(guest):
    outputs = guest.outputs("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('x');")
    (figure,) = [one for one in outputs if one["output_type"] == "display_data"]
    assert base64.b64decode(figure["data"]["image/png"]).startswith(b"\x89PNG")


def test_a_file_is_written_and_can_be_imported(guest):
    assert guest.outputs("%%writefile helper_of_mine.py\nvalue = 3") == [
        stream("Writing helper_of_mine.py\n")]
    assert guest.outputs("import helper_of_mine\nprint(helper_of_mine.value)") == [stream("3\n")]


@pytest.mark.parametrize("source", ["exit()", "quit()", "exit", "import sys\nsys.exit(3)",
                                    "raise SystemExit", "raise KeyboardInterrupt",
                                    "raise GeneratorExit"])
def test_nothing_that_python_calls_an_exit_ends_it(guest, source):
    guest.cell(source)
    assert guest.outputs("print('still here')") == [stream("still here\n")]


def test_a_cell_whose_magics_take_minutes_to_transform_is_not_run(guest):
    (said,) = guest.outputs("%timeit 1\n" * 2_000)
    assert said["ename"] == "RuntimeError" and "this cell is not run" in said["evalue"]
    assert guest.outputs("%%writefile notes.txt\n" + "Really?\n" * 20_000)


def test_input_is_refused_as_where_nobody_types(guest):
    assert guest.cell("input('name? ')")["error"]["names"][0] == "StdinNotImplementedError"


@pytest.mark.slow
def test_a_line_of_60_mb_is_cut_while_it_comes(fresh):
    for source in ("print('x' * 60_000_000)", "print('\\x00' * 60_000_000)",
                   "!head -c 60000000 /dev/zero | tr '\\0' x",
                   "from IPython.display import HTML\ndisplay(HTML('x' * 60_000_000))",
                   "for number in range(2000): display(number)",
                   "for number in range(30_000): print('x' * 99)"):
        outputs = fresh.outputs(source)
        assert "was cut" in outputs[-1]["text"]
        assert len(str(outputs)) < 2 * MOST_BYTES
    # Not ru_maxrss, which begins with what the process was that started it.
    peak = "!grep VmHWM /proc/$PPID/status"
    assert int(fresh.outputs(peak)[-1]["text"].split()[1]) < 400_000  # KiB: with its own 60 MB


def test_values_and_calls_cross_as_plain_copies(guest):
    guest.cell("def half(x):\n    print('half of', x)\n    return x / 2\n"
               "many = {'a': (1, 2.5)}\nclass Layer: pass")
    assert guest.call("half", 3)["value"] == "1.5"
    assert guest.call("half", x=0)["value"] == "0.0"
    assert guest.call("half", "a")["raised"]["names"][0] == "TypeError"
    assert "type Layer" in guest.call("Layer")["cannot"]
    assert wire.loads(guest.request("value", SECONDS, name="many")["value"].encode()) == {
        "a": (1, 2.5)}
    assert guest.request("value", SECONDS, name="nothing")["raised"]["names"][0] == "NameError"
    kinds = {name: guest.request("kind", SECONDS, name=name)["kind"]
             for name in ("half", "many", "Layer", "get_ipython", "nothing")}
    assert kinds == {"half": "callable", "many": "plain", "Layer": "callable",
                     "get_ipython": "callable", "nothing": "missing"}
    assert guest.request("title", SECONDS, name="half")["title"] == "half"
    assert guest.outputs("print('next')") == [stream("next\n")]  # what calls print is not shown


@pytest.mark.parametrize("way", ["raise SystemExit", "raise KeyboardInterrupt", "exit()"])
def test_whatever_a_call_raises_is_what_it_raised(guest, way):
    guest.cell(f"def leave():\n    {way}")
    guest.call("leave")
    assert guest.outputs("print('here')") == [stream("here\n")]


@pytest.mark.parametrize("make", ["type('a b', (ValueError,), {})",
                                  "type('E' * 999, (ValueError,), {})",
                                  "deep"])
def test_an_exception_with_odd_names_arrives_as_one(guest, make):
    guest.cell("deep = ValueError\nfor number in range(300): deep = type('D', (deep,), {})\n"
               f"def odd():\n    raise ({make})('text')")
    result = as_raised(guest.call("odd")["raised"])
    assert result is not None and result.text == "text" and "ValueError" in result.names


def test_a_script_is_recorded_as_in_the_notebook(guest):
    guest.cell("%%writefile code/try.sh\n#!/bin/bash\n#SBATCH --nodes=2\n"
               "srun torchrun --nnodes 2 x.py")
    record = guest.request("script", SECONDS, path="code/try.sh")["record"]
    assert record["components"] == [{"nodes": "2"}]
    assert [one["program"] for one in record["launches"]] == ["srun", "torchrun", "torchrun"]
    assert "is not a file" in guest.request("script", SECONDS, path="code/no.sh")["error"]


def test_programs_do_not_inherit_the_channel_and_a_fork_answers_nothing(guest):
    (shown,) = guest.outputs("!ls -1 /proc/self/fd | sort -n | tr '\\n' ' '")
    assert [int(number) for number in shown["text"].split()] == [0, 1, 2, 3]  # 3: of ls
    guest.cell("import os\nos.fork();")
    assert guest.outputs("print('one')") == [stream("one\n")]


def test_one_who_ends_it_is_gone_at_once(fresh):
    start = time.monotonic()
    with pytest.raises(SandboxDied, match="exit code 7"):
        fresh.cell("import os\nos._exit(7)")
    assert time.monotonic() - start < 2


@pytest.mark.parametrize("size", [64, 3000])
def test_what_is_cut_says_so_and_fits_into_a_frame(size):
    for letter in "x\n\"\0\ud800":
        capture = Capture()
        for _ in range(2 * MOST_BYTES // size):
            capture.print("stdout", letter * size)
        capture.print("stderr", "last")
        capture.add({"output_type": "display_data", "data": {}, "metadata": {}})
        outputs = capture.take()
        assert "was cut" in outputs[-1]["text"] and len(outputs) == 2
        protocol.pack({"id": 1, "outputs": outputs, "error": None})
