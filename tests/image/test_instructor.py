"""The instructors' image: formgrader answers, and one submission is graded in the sandbox."""

import csv
import io
import json

import pytest

from labcore.workspace import CHECKOUT
from tests.image.conftest import PROFILE, containers

pytestmark = [pytest.mark.image, pytest.mark.timeout(1200)]

LAB = "00_welcome"


@pytest.fixture(scope="module")
def teacher(podman, instructor):
    with containers(podman) as start:
        container = start(f"--security-opt=seccomp={PROFILE}", image=instructor)
        container.token()
        yield container


def submission():
    """The released notebook with the worked one's answers in it."""
    released, worked = (json.loads((CHECKOUT / "notebooks" / folder / f"{LAB}.ipynb").read_text())
                        for folder in ("", "worked"))
    answers = {cell["id"]: cell["source"] for cell in worked["cells"]}
    for cell in released["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("solution"):
            cell["source"] = answers[cell["id"]]
    return json.dumps(released)


def test_formgrader_answers_with_the_token_only(teacher):
    assert teacher.get("/formgrader", teacher.token()) == 200
    assert teacher.get("/api/contents") == 403


def test_a_submission_is_graded_in_the_sandbox(teacher, podman, tmp_path):
    place = tmp_path / "ada" / LAB
    place.mkdir(parents=True)
    (place / f"{LAB}.ipynb").write_text(submission())
    podman("cp", str(tmp_path / "ada"), f"{teacher.name}:/home/jovyan/course/submitted/")
    done = podman.try_to("exec", teacher.name, "lab", "grade", LAB, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    table = podman("exec", teacher.name, "cat", "/home/jovyan/course/grades.csv")
    (row,) = csv.DictReader(io.StringIO(table))
    assert (row["student"], row["state"]) == ("ada", "graded"), table
    assert float(row["score"]) == float(row["max_score"]) > 0, table


def test_under_dockers_own_profile_nothing_is_graded(podman, instructor, dockers_profile):
    with containers(podman) as start:
        container = start(dockers_profile, image=instructor,
                          command=["lab", "install-sandbox", "--test"])
        said, code = container.ended()
    assert code == 1 and "docker/seccomp-sandbox.json" in " ".join(said), " ".join(said)
