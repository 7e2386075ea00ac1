"""The batch scripts that `lab submit` writes."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from lab.submit import cli, scripts, trainer_flags
from labcore import workspace
from labcore.errors import LabError

from .test_conf import MIXED, XL


def test_a_homogeneous_job(place):
    (script,) = scripts.render(place(XL))
    assert str(script.path) == "code/run.sh"
    assert "#SBATCH hetjob" not in script.text and "--het-group" not in script.text
    assert "#SBATCH --nodes=8\n" in script.text
    assert "--pipeline-model-parallel-size 8 --balance 0-11-8-8-8-8-5-0)" in flat(script)
    check_syntax(script)


def test_a_heterogeneous_job_is_one_step_over_all_components(place):
    (script,) = scripts.render(place(MIXED))
    header = [line for line in script.text.splitlines() if line.startswith("#SBATCH")]
    at = header.index("#SBATCH hetjob")
    assert "#SBATCH --gpus-per-node=a100:2" in header[:at]
    assert "#SBATCH --gpus-per-node=a10:2" in header[at:]
    assert "srun --het-group=0,1 " in script.text
    check_syntax(script)


def test_joined_jobs_share_an_address_and_count_their_nodes_on(place):
    values = MIXED | {"cluster": '"a100:2x2,a10:2x1"', "pipeline-parallel": "3", "job": '"joined"',
                      "partition": '"5-5-2"'}
    master, join = scripts.render(place(values))
    assert (str(master.path), str(join.path)) == ("code/run.master.sh", "code/run.join1.sh")
    assert "--node_rank $((0 + SLURM_PROCID))" in master.text
    assert "--node_rank $((2 + SLURM_PROCID))" in join.text
    for script in (master, join):
        assert "--nnodes 3 " in script.text and "hetjob" not in script.text
        check_syntax(script)


def test_options_of_the_file_reach_the_script(place):
    (script,) = scripts.render(place(MIXED | {
        "profile": "true", "network": '"ethernet:25gbit"', "schedule": '"gpipe"',
        "precision": '"bf16"', "iterations": "2", "reload-container": "true",
        "flags": '["--recompute-granularity", "selective"]'}))
    for words in ('--timeline "$FOLDER/timeline" --timeline-iteration 2', "--schedule gpipe",
                  "--virtual-network ethernet:25gbit", "--bf16", "--log-interval 2",
                  "MORE=(--recompute-granularity selective)", "APPTAINER_DISABLE_CACHE=true"):
        assert words in flat(script)
    check_syntax(script)


HOSTILE = ["--save", "my  folder", "--load", "$(touch run); 'a' \"b\" `c` \\d", "--seed",
           "line\nbreak"]


def test_flags_reach_the_trainer_as_they_are_in_the_file(place, tmp_path):
    made = place(MIXED | {"flags": json.dumps(HOSTILE)})
    (script,) = scripts.render(made)
    at = script.text.index("MORE=(")
    array = script.text[at:script.text.index("\n\n", at)]
    done = subprocess.run(["bash", "-c", array + '\nprintf "%s\\0" "${MORE[@]}"'], cwd=tmp_path,
                          capture_output=True, text=True, check=True)
    assert done.stdout.split("\0")[:-1] == HOSTILE and not (tmp_path / "run").exists()


def test_a_file_name_stays_in_its_comment(place):
    made = place(MIXED | {"name": '"run"'})
    named = replace(made, conf=replace(made.conf, file=Path("a.toml\ntouch run\n#")))
    (script,) = scripts.render(named)
    assert "\ntouch" not in script.text


@pytest.mark.parametrize(("record", "has_joined"), [
    ("JobId=7 JobState=RUNNING Reason=None Command=/w/code/run.join1.sh 5 WorkDir=/w", True),
    ("JobId=7 JobState=RUNNING Reason=None Command=/w/run.join1.sh 5 --seed 1 WorkDir=/w", True),
    ("JobId=7 JobState=RUNNING Reason=None Command=/w/code/run.join1.sh 4 WorkDir=/w", False),
    ("JobId=7 JobState=COMPLETED Reason=None Command=/w/code/run.join1.sh 5 WorkDir=/w", False),
    ("", False),
])
def test_a_master_believes_only_a_running_job_that_joins_it(place, tmp_path, record, has_joined):
    values = MIXED | {"job": '"joined"'}
    master, _ = scripts.render(place(values))
    at = master.text.index("joined() {")
    function = master.text[at:master.text.index("\n}\n", at) + 3]
    (tmp_path / "joined.1").write_text("7\n")
    slurm = tmp_path / "scontrol"
    slurm.write_text(f"#!/bin/sh\n[ \"$4\" = 7 ] && echo '{record}'\n")
    slurm.chmod(0o755)
    done = subprocess.run(["bash", "-euc", f"{function}\njoined 1"], env={
        "PATH": f"{tmp_path}:/usr/bin:/bin", "FOLDER": str(tmp_path), "SLURM_JOB_ID": "5"})
    assert (done.returncode == 0) == has_joined


DEFAULTS = ["--lr", "--min-lr", "--lr-decay-style", "--lr-decay-iters", "--lr-warmup-fraction",
            "--weight-decay", "--clip-grad", "--data-path", "--vocab-file", "--merge-file",
            "--split", "--log-interval", "--eval-iters", "--tensorboard-dir"]
OWN = {"--lr": "9e-4", "--min-lr": "1e-6", "--lr-decay-style": "linear", "--lr-decay-iters": "77",
       "--lr-warmup-fraction": "0.2", "--weight-decay": "0.3", "--clip-grad": "0.5",
       "--data-path": "data/mine", "--vocab-file": "v.json", "--merge-file": "m.txt",
       "--split": "90,5,5", "--log-interval": "1", "--eval-iters": "3",
       "--tensorboard-dir": "here", "--timeline-iteration": "2"}


def command_line(script, folder, *arguments):
    """Return the trainer's command line when a batch script runs, without the last word's file."""
    for name, text in {"srun": 'printf "%s\\0" "$@"', "scontrol": "echo n1"}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(["bash", "-s", "--", *arguments], input=script.text, capture_output=True,
                          text=True, check=True,
                          env={"PATH": f"{folder}:/usr/bin:/bin", "LAB_HOME": "/w",
                               "SLURM_JOB_ID": "5", "SLURM_JOB_NODELIST": "n1"})
    words = done.stdout.split("\0")[:-1]
    at = next(index for index, word in enumerate(words) if word.endswith("pretrain_gpt.py"))
    return words[at + 1:]


def test_the_script_has_every_default_if_the_file_has_no_flags(place, tmp_path):
    words = command_line(*scripts.render(place(MIXED)), tmp_path)
    assert [words.count(flag) for flag in DEFAULTS] == [1] * len(DEFAULTS)
    assert "/w/data/GPT-2_assets/my-gpt2_text_document" in words


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
@pytest.mark.parametrize("flag", OWN)
def test_a_flag_of_the_file_replaces_the_default(place, tmp_path, flag, form):
    flags = form.format(flag, OWN[flag]).split()
    placed = place(MIXED | {"flags": json.dumps(flags), "profile": "true"})
    trainer_flags.check(placed)
    words = command_line(*scripts.render(placed), tmp_path)
    assert [word for word in words if word.partition("=")[0] == flag] == flags[:1]
    assert len(flags) == 1 or words[words.index(flag) + 1] == OWN[flag]


def test_a_flag_replaces_the_defaults_that_contradict_it(place, tmp_path):
    flags = ["--lr-warmup-iters", "2", "--lr-decay-iters", "40"]
    placed = place(MIXED | {"flags": json.dumps(flags)})
    trainer_flags.check(placed)
    words = command_line(*scripts.render(placed), tmp_path)
    assert "--lr-warmup-fraction" not in words and words.count("--lr-decay-iters") == 1


def test_an_argument_of_sbatch_overrides_the_script(place, tmp_path):
    words = command_line(*scripts.render(place(MIXED)), tmp_path, "--lr", "3e-4")
    assert words[-2:] == ["--lr", "3e-4"]


def flat(script):
    return " ".join(script.text.split())


def check_syntax(script):
    done = subprocess.run(["bash", "-n"], input=script.text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, script.text.splitlines())) <= 100


def test_what_a_student_changed_is_never_overwritten(place, tmp_path):
    first, second = scripts.render(place(MIXED)), scripts.render(place(MIXED, iterations="7"))
    (tmp_path / "code").mkdir()
    scripts.write(tmp_path, first)
    scripts.write(tmp_path, second)  # unchanged, so it is replaced
    path = tmp_path / "code" / "run.sh"
    assert path.read_text() == second[0].text and path.stat().st_mode & 0o100
    path.write_text(path.read_text().replace("--train-iters 7", "--train-iters 8"))
    with pytest.raises(LabError, match=r'code/run\.sh is not what lab submit .* name = "run_2"'):
        scripts.write(tmp_path, first)
    assert "--train-iters 8" in path.read_text()


def test_all_scripts_are_written_or_none(place, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.join1.sh").write_text("echo mine\n")
    with pytest.raises(LabError):
        scripts.write(tmp_path, scripts.render(place(MIXED, job='"joined"')))
    assert [one.name for one in (tmp_path / "code").iterdir()] == ["run.join1.sh"]


def test_a_workspace_that_only_has_data_gets_what_the_scripts_use(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "CHECKOUT", tmp_path / "checkout")  # no notebooks to copy
    (tmp_path / "checkout/code/jobs").mkdir(parents=True)
    (tmp_path / "checkout/code/jobs/run_node.sh").write_text("")
    home = tmp_path / "home"
    with pytest.raises(LabError, match="create it with lab data, or pass another data set"):
        cli.prepare_workspace(home, uses_own_data=True)
    cli.prepare_workspace(home, uses_own_data=False)
    (home / "data/GPT-2_assets").mkdir(parents=True)
    (home / "data/GPT-2_assets/my-gpt2_text_document.bin").touch()
    cli.prepare_workspace(home, uses_own_data=True)
    assert (home / "code/run_node.sh").exists() and (home / "megatron/logs").is_dir()
    assert (home / "megatron/Megatron-LM/pretrain_gpt.py").exists()
