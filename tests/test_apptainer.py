"""docker/apptainer.def as far as it can be looked at without Apptainer: its sections are shell."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docker" / "apptainer.def").read_text()
HEAD, *PARTS = re.split(r"^%(\w+)\n", TEXT, flags=re.M)
SECTIONS = dict(zip(PARTS[::2], PARTS[1::2], strict=True))


def test_its_arguments_have_defaults():
    asked = set(re.findall(r"\{\{ (\w+) \}\}", HEAD))
    assert asked == set(re.findall(r"^ +(\w+)=", SECTIONS["arguments"], re.M)) == {
        "BOOTSTRAP", "FROM"}


def test_the_published_image_is_the_one_of_kubernetes():
    (name,) = re.findall(r"FROM=(\S+)", SECTIONS["arguments"])
    image = yaml.safe_load((ROOT / "docker" / "jupyterhub" / "values.yaml").read_text())[
        "singleuser"]["image"]
    assert name == f"{image['name']}:{image['tag']}"


@pytest.mark.parametrize("section", ["environment", "runscript", "test"])
def test_a_section_is_shell(section):
    assert subprocess.run(["sh", "-n"], input=SECTIONS[section], text=True).returncode == 0


@pytest.mark.parametrize("given, wanted", [("/home/jovyan/work", "/shared/ada/labs"),
                                           ("/scratch/x", "/scratch/x")])
def test_a_workspace_of_ones_own_counts_and_the_images_does_not(given, wanted):
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    assert "LAB_HOME=/home/jovyan/work" in dockerfile
    done = subprocess.run(["sh", "-c", SECTIONS["environment"] + '\necho "$LAB_HOME"'], text=True,
                          capture_output=True, env={"HOME": "/shared/ada", "LAB_HOME": given})
    assert done.stdout.strip() == wanted
