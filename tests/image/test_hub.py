"""A class behind a hub: two students with a cluster each, an instructor who collects and grades."""

import csv
import functools
import io
import json
import time

import pytest

from tests.browser.driver import until
from tests.browser.fixtures import new_context
from tests.image import lab_03
from tests.image.hub import running

pytestmark = [pytest.mark.image, pytest.mark.browser, pytest.mark.timeout(900)]

ROSTER = "id,first_name,last_name\nada,Ada,Lovelace\ngrace,Grace,Hopper\nlise,Lise,Meitner\n"
BELOW = "work/notebooks"


@pytest.fixture(scope="module")
def hub(podman, image, instructor, tmp_path_factory):
    with running(podman, tmp_path_factory.mktemp("hub"), ROSTER, "prof") as hub:
        yield hub


@pytest.fixture(scope="module")
def contexts(hub, browser):
    """Browsers of the people, logged in at the first use."""
    collected = {}

    def context(user):
        if user not in collected:
            collected[user] = new_context(browser)
            hub.log_in(collected[user], user).close()
        return collected[user]

    yield context
    for one in collected.values():
        one.close()


def test_a_student_works_in_lab_03_behind_the_hub(hub, contexts, screenshot, say):
    begun = time.monotonic()
    page = contexts("ada").new_page()
    say(f"hub: JupyterLab {time.monotonic() - begun:.0f} s after the login")
    server = lab_03.Server(f"{hub.root}/user/ada")
    lab_03.train(page, server, functools.partial(hub.inside, "ada"))
    assert lab_03.tensorboard(page, screenshot).startswith(f"{server.root}/tensorboard")
    page.keyboard.press("Control+s")
    page.locator(".jp-NotebookPanel-toolbar").first.wait_for()
    until(page, lambda: "guess_milliseconds = 300" in hub.inside(
        "ada", f"cat {BELOW}/{lab_03.NAME}.ipynb").stdout, "the saved notebook")
    screenshot(page, "hub-lab-03")


def test_each_student_has_a_cluster_and_a_home_of_her_own(hub, contexts):
    contexts("ada")
    contexts("grace")
    submit = 'eval "$(lab cluster env)"; sbatch --wrap hostname --job-name of-ada; '
    look = 'eval "$(lab cluster env)"; sinfo -h -o %T; sacct -n -X -o jobname%20'
    assert "of-ada" in hub.inside("ada", submit + look).stdout
    of_grace = hub.inside("grace", look).stdout
    assert "idle" in of_grace and "of-ada" not in of_grace
    assert hub.inside("ada", "touch mine").returncode == 0
    assert hub.inside("grace", "ls").stdout.split() == ["work"]
    assert hub.inside("grace", "ls /home /srv").stdout.split() == ["/home:", "jovyan", "/srv:"]


def test_one_student_cannot_read_anothers(hub, contexts):
    contexts("ada")
    asked = contexts("grace").request.get(f"{hub.root}/user/ada/api/contents")
    assert asked.status == 403
    address = hub.podman("inspect", "--format",
                         f'{{{{(index .NetworkSettings.Networks "{hub.name}").IPAddress}}}}',
                         hub.container("ada"))
    script = ("import urllib.request as u, urllib.error as e\n"
              f"try: print(u.urlopen('http://{address}:8888/user/ada/api/contents').status)\n"
              "except (e.URLError, OSError) as error: print(error)")
    assert "403" in hub.inside("grace", f'python -c "{script}"').stdout


def test_a_students_container_has_limits_and_no_privileges(hub, contexts):
    contexts("ada")
    (data,) = json.loads(hub.podman("inspect", hub.container("ada")))
    limits = data["HostConfig"]
    assert limits["Memory"] == 3 << 30 and limits["CpuQuota"] == 2 * limits["CpuPeriod"]
    assert data["EffectiveCaps"] in ([], None) and limits["PidsLimit"] == 4096
    assert [mount["Name"] for mount in data["Mounts"]] == ["labs-ada"]


def test_students_have_no_formgrader_and_no_grader(hub, contexts):
    assert contexts("ada").request.get(f"{hub.root}/user/ada/formgrader").status == 404
    assert hub.inside("ada", "lab grade --help").returncode == 2


# Exercise 4 of lab 03, answered in the notebook as it lies in the home.
ANSWER = f"""
import json
path = "{BELOW}/{lab_03.NAME}.ipynb"
notebook = json.load(open(path))
(cell,) = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"
           and "def stragglers" in "".join(cell["source"])]
cell["source"] = '''def stragglers(compute, communication):
    slow = [rank for rank, time in enumerate(compute) if time > 1.1 * min(compute)]
    return slow, max(compute) - min(compute) if slow else 0.0'''
json.dump(notebook, open(path, "w"))
"""


def test_the_instructor_collects_and_grades(hub, contexts, screenshot):
    for student in ("ada", "grace"):
        contexts(student)
    done = hub.inside("ada", f"python - <<'end'\n{ANSWER}\nend")
    assert done.returncode == 0, done
    page = contexts("prof").new_page()
    assert hub.inside("prof", "ls /srv/homes").stdout.split() == ["ada", "grace"]
    assert hub.inside("prof", "touch /srv/homes/ada/x").returncode != 0
    hub.podman("cp", str(hub.folder / "students.csv"), f"{hub.container('prof')}:/tmp/students.csv")
    done = hub.inside("prof", "lab roster import /tmp/students.csv && "
                      f"lab collect /srv/homes --below {BELOW} --lab {lab_03.NAME}")
    assert done.returncode == 0 and "1 new, 0 same, 0 other, 1 refused" in done.stdout, done
    assert f"grace/{BELOW}/{lab_03.NAME}.ipynb (grace): unchanged from the release" in done.stdout
    done = hub.inside("prof", f"lab grade {lab_03.NAME}", timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    grades = csv.DictReader(io.StringIO(hub.inside("prof", "cat course/grades.csv").stdout))
    (ada,) = [row for row in grades if (row["student"], row["lab"]) == ("ada", lab_03.NAME)]
    assert ada["state"] == "graded" and float(ada["score"]) > 0, ada
    page.goto(f"{hub.root}/user/prof/formgrader/manage_submissions/{lab_03.NAME}")
    page.locator("tr", has_text="ada").wait_for()
    screenshot(page, "hub-formgrader")


def test_a_stopped_server_stops_in_order_and_its_home_stays(hub, contexts):
    page = contexts("ada").new_page()
    page.goto(f"{hub.root}/hub/home")
    page.locator("#stop").click()
    page.locator("#start", has_text="Start").wait_for()
    assert hub.container("ada") not in hub.podman("ps", "--all", "--format", "{{.Names}}").split()
    assert "labs-ada" in hub.podman("volume", "ls", "--quiet").split()
