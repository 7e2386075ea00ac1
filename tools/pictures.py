"""The guides' pictures and the labs' screens of the profiler, taken in headless Chromium:

    python tools/pictures.py [NAME ...]

Everything that they show is made for them in a folder that is thrown away: a workspace with its
data and its cluster, one job of lab 03 on the CPU and one on virtual GPUs, a job of the students'
own trainer beside the same job of the course's, and a course of three.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib.figure import Figure
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "code")]

import slurmbox as cluster  # noqa: E402
from corpus_tools import cli as data  # noqa: E402
from job_monitor import logs  # noqa: E402
from lab.jupyter import Jupyter, offline_settings  # noqa: E402
from labcore import shipping  # noqa: E402
from tests.browser import driver  # noqa: E402
from tests.browser.fixtures import ARGUMENTS, find_chromium  # noqa: E402
from tests.ports import free_port  # noqa: E402
from tools.screens import (  # noqa: E402
    FOLDER,
    WIDTH,
    open_profiler,
    put_at_top,
    run,
    save,
    save_part,
    wait,
)

LAB, WORKED = "notebooks/10_pipeline_1.ipynb", "notebooks/worked/03_multi_node.ipynb"
GRADED = "00_welcome"
BOUND = 1e-5  # of the relative difference of two losses, as docs/mytrainer.md says
WRONG = """import math

def enough(p, limit):
    return max(1, math.ceil((p - 1) / limit))"""


def start_page(page: Page, jupyter: Jupyter, home: Path) -> None:
    """JupyterLab with a terminal, in which a job is submitted."""
    driver.open_lab(page, jupyter)
    page.locator(".jp-LauncherCard", has_text="Terminal").first.click()
    terminal = page.locator(".jp-Terminal .xterm-helper-textarea").first
    terminal.wait_for(state="attached", timeout=30_000)
    page.wait_for_timeout(2000)
    for line in ("cd $LAB_HOME; PS1='$ '; clear", "sinfo", "srun --nodes=2 hostname",
                 "sbatch code/dp_two_nodes.sh", "squeue"):
        page.keyboard.type(line + "\n")
        page.wait_for_timeout(4000)
    save(page, "jupyterlab", 480)
    page.keyboard.type("scancel --me\n")
    page.wait_for_timeout(2000)


def hint(page: Page, jupyter: Jupyter, home: Path) -> None:
    """A wrong answer, its check, and the hint."""
    driver.open_notebook(page, jupyter, LAB)
    run(page, "from labkit import check")
    answer = driver.number_of(page, "def enough")
    driver.code_cell(page, answer).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(WRONG)
    driver.run_cell(page, answer)
    run(page, 'check("bubble")')
    put_at_top(page, "Derive it from your GPipe", 20)
    save(page, "hint")


def job(page: Page, jupyter: Jupyter, home: Path) -> None:
    """A job that learns: its loss in the notebook, and in TensorBoard."""
    driver.open_notebook(page, jupyter, WORKED)
    run(page, "os.chdir", "from labkit import check", "jobs.connect()", "guess_milliseconds =",
        "!sbatch code/dp_two_nodes.sh")
    wait(page, "job = jobs.wait()")
    run(page, "times = [line.milliseconds for line in log", "!sbatch code/dp_single_node.sh")
    wait(page, "single = jobs.wait()")
    run(page, "plots.loss(", "tensorboard.link()")
    page.locator("img[alt^='Training loss over samples']").wait_for(timeout=20_000)
    put_at_top(page, "plots.loss(")
    save(page, "loss")
    with page.context.expect_page() as opened:
        page.locator(f"{driver.NOTEBOOK} a", has_text="Open TensorBoard").click()
    board = opened.value
    board.locator("text=lm loss").first.wait_for(timeout=90_000)
    board.locator("input[placeholder^='Filter tags']").fill("^lm loss$")
    board.locator("button", has_text="Settings").first.click()
    board.wait_for_timeout(5000)  # the lines are drawn after the cards
    save(board, "tensorboard", 600)
    board.close()


def profile(page: Page, jupyter: Jupyter, home: Path) -> None:
    """Four virtual V100s in the profiler's tab: its overview, and the timeline of a step."""
    driver.open_notebook(page, jupyter, WORKED)
    run(page, "os.chdir", "from labkit import check", "jobs.connect()",
        "#SBATCH --job-name=my_two_nodes", "--profile-name four")
    wait(page, "four = jobs.wait()")
    board, frame = open_profiler(page, "my_two_nodes/run_four")
    save(board, "profiler", 840, 1720)
    board.set_viewport_size({"width": 1500, "height": 900})
    save_part(board, "profiler_overview", 0, 64, 1500, 360)
    driver.choose(board, frame, 1, "Trace")
    driver.until(board, lambda: any("trace_embedding" in one.url for one in board.frames),
                 "the timeline")
    viewer = next(one for one in board.frames if "trace_embedding" in one.url)
    viewer.locator("text=stream 7: compute").first.wait_for(state="attached", timeout=60_000)
    board.wait_for_timeout(2000)  # its rows appear one by one
    board.mouse.move(900, 300)
    board.mouse.wheel(0, 600)  # down to the GPU
    save_part(board, "profiler_trace", 0, 64, 1500, 536)
    board.close()


def straggler(page: Page, jupyter: Jupyter, home: Path) -> None:
    """The job with a slow node in the profiler's view of all ranks."""
    driver.open_notebook(page, jupyter, WORKED)
    run(page, "os.chdir", "from labkit import check", "jobs.connect()", "GPT2 = (",
        "!sbatch code/case_d.sh")
    wait(page, "case_d = jobs.wait()")
    board, frame = open_profiler(page, "case_d/run_slow")
    driver.choose(board, frame, 1, "Distributed")
    board.set_viewport_size({"width": 1500, "height": 1600})
    frame.locator(".barlayer .point").first.wait_for(timeout=60_000)
    save_part(board, "profiler_straggler", 364, 700, 1112, 545)
    board.close()


def my_trainer(page: Page, jupyter: Jupyter, home: Path) -> None:
    """Losses of the worked mytrainer/ and of the course's trainer, 50 steps on two nodes."""
    for piece in (ROOT / "notebooks" / "worked" / "mytrainer").glob("*.py"):
        shutil.copy(piece, home / "mytrainer")
    script = (home / "code" / "my_trainer.sh").read_text()
    course = script.replace("code/my_trainer.py", "megatron/Megatron-LM/pretrain_gpt.py")
    assert course != script
    flags = ["--train-iters", "50", "--log-interval", "1", "--eval-iters", "0"]
    curves = {}
    for name, text in {"mytrainer": script, "pretrain_gpt": course}.items():
        log = home / "megatron" / "logs" / f"{name}.txt"
        subprocess.run(["sbatch", "--wait", f"--output={log}", "/dev/stdin", *flags], input=text,
                       text=True, cwd=home, env=cluster.environment(home), check=True)
        curves[name] = [line.loss for line in logs.read(log).iterations]
    draw_losses(curves["mytrainer"], curves["pretrain_gpt"], FOLDER / "my_trainer.png")


def draw_losses(mine: list[float], theirs: list[float], path: Path) -> None:
    """Draw both loss curves, and their relative difference step by step."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    losses, difference = figure.subplots(1, 2)
    steps = range(1, len(theirs) + 1)
    losses.plot(steps, theirs, color="C0", linewidth=4, alpha=0.4, label="pretrain_gpt.py")
    losses.plot(steps, mine, color="C1", label="my_trainer.py with mytrainer/ddp.py")
    losses.set(xlabel="step", ylabel="loss", title="Four ranks on two nodes, fp32")
    losses.legend()
    gaps = [abs(one - other) / other for one, other in zip(mine, theirs, strict=True)]
    assert len(gaps) == 50 and max(gaps) < BOUND, max(gaps)
    difference.plot(steps, gaps, "o", markersize=3, color="C1")
    difference.axhline(BOUND, color="C3", linestyle="--", label=f"bound: {BOUND:.0e}")
    difference.set_yscale("symlog", linthresh=1e-8)
    difference.set(xlabel="step", title="Relative difference of the losses", ylim=(0, 1e-4))
    difference.legend(loc="lower right")
    figure.savefig(path, dpi=100)


def formgrader(page: Page, jupyter: Jupyter, course: Path) -> None:
    """The submissions of a lab."""
    driver.open_lab(page, jupyter)  # which signs the browser in
    page.goto(f"{jupyter.root}/formgrader/manage_submissions/{GRADED}")
    page.locator("tr", has_text="Lovelace").wait_for(timeout=60_000)
    page.wait_for_timeout(1000)
    save(page, "formgrader", 520)


def feedback(page: Page, jupyter: Jupyter, course: Path) -> None:
    """The page that Jane gets: one answer of hers is wrong."""
    page.goto((course / "feedback" / "jane" / GRADED / f"{GRADED}.html").as_uri())
    page.locator("pre", has_text="and not reports").first.evaluate("one => one.scrollIntoView()")
    page.wait_for_timeout(500)
    save(page, "feedback", 720)


@contextlib.contextmanager
def student(folder: Path) -> Iterator[tuple[Jupyter, Path]]:
    """JupyterLab over a workspace with its data, beside a cluster."""
    home = folder / "workspace"
    shipping.make_workspace(home, print)
    data.make(home, print, data.DataOptions())
    cluster.ensure_up(home)
    try:
        (home / ".cluster").mkdir(exist_ok=True)
        # All cells are in the page, not only those in view.
        overrides = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}
        path = offline_settings(home) / "labconfig" / "default_setting_overrides.json"
        path.write_text(json.dumps(overrides))
        with serving(Jupyter(home, cluster.environment(home), free_port())) as jupyter:
            yield jupyter, home
    finally:
        cluster.down(home)


@contextlib.contextmanager
def instructor(folder: Path) -> Iterator[tuple[Jupyter, Path]]:
    """JupyterLab with formgrader over a graded course: all right, nothing done, one mistake."""
    course, source = folder / "course", ROOT / "grader" / "source" / GRADED / f"{GRADED}.ipynb"
    marks = r' *"\s*### (BEGIN|END) SOLUTION(\\n)?",?\n'
    answers = re.sub(r",(\s*\])", r"\1", re.sub(marks, "", source.read_text()))
    hands = {"ada": answers, "grace": (ROOT / "notebooks" / source.name).read_text(),
             "jane": answers.replace("if silent:", "if silent and not reports:")}
    assert hands["jane"] != hands["ada"]
    for name, text in hands.items():
        path = course / "submitted" / name / GRADED / source.name
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (folder / "students.csv").write_text("id,first_name,last_name\nada,Ada,Lovelace\n"
                                         "grace,Grace,Hopper\njane,Jane,Doe\n")
    environment = {**os.environ, "LAB_COURSE": str(course)}
    for words in (("roster", "import", str(folder / "students.csv")), ("grade", GRADED)):
        subprocess.run([Path(sys.executable).with_name("lab"), *words], env=environment, check=True)
    (course / ".cluster").mkdir(exist_ok=True)
    with serving(Jupyter(course, {"LAB_COURSE": str(course)}, free_port(), instructor=True)) as one:
        yield one, course


@contextlib.contextmanager
def serving(jupyter: Jupyter) -> Iterator[Jupyter]:
    try:
        jupyter.wait_until_ready()
        yield jupyter
    finally:
        jupyter.stop()


Shot = Callable[[Page, Jupyter, Path], None]
SHOTS: dict[str, tuple[Callable, Shot]] = {
    "jupyterlab": (student, start_page), "hint": (student, hint), "loss": (student, job),
    "profiler": (student, profile), "straggler": (student, straggler),
    "my_trainer": (student, my_trainer),
    "formgrader": (instructor, formgrader), "feedback": (instructor, feedback)}


def take(browser: Browser, names: list[str], folder: Path) -> None:
    for world in (student, instructor):
        wanted = [name for name in SHOTS if name in names and SHOTS[name][0] is world]
        if not wanted:
            continue
        with world(folder) as (jupyter, place):
            for name in wanted:
                context = browser.new_context(viewport={"width": WIDTH, "height": 860})
                SHOTS[name][1](context.new_page(), jupyter, place)
                context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[*SHOTS, []], metavar="NAME",
                        help=f"of {', '.join(SHOTS)} (all)")
    names = parser.parse_args().names or list(SHOTS)
    program = find_chromium()
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium")
    FOLDER.mkdir(exist_ok=True)
    for name in [name for name in os.environ if re.match("SLURM_", name)]:
        del os.environ[name]
    folder = Path(tempfile.mkdtemp(prefix="pictures"))
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
            take(browser, names, folder)
            browser.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
