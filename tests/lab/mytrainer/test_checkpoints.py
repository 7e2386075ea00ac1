"""Checkpoints of my_trainer.py that are damaged, incomplete, or another model's."""

import json
import math
import os
import re
import shlex
import shutil
import zlib
from types import SimpleNamespace

import pytest

import generate
from lab.mytrainer import checkpoints
from labcore.workspace import CODE
from minimegatron.errors import UserError
from tests.lab.mytrainer.conftest import MODEL, TRAINING
from tests.lab.mytrainer.program import SCRIPT, main
from warmranks import run_program

pytestmark = pytest.mark.slow

STEPS = TRAINING.replace("--train-iters 32", "--train-iters 4 --lr-decay-iters 32")
FLAGS = f"{MODEL}{STEPS}--micro-batch-size 2 "
OPTIM = "--use-distributed-optimizer "


@pytest.fixture(scope="module")
def saved(tmp_path_factory, dataset):
    """A workspace in which two ranks have saved after steps 2 and 4."""
    from tests.lab.mytrainer.conftest import Student

    student = Student(tmp_path_factory.mktemp("saved") / "workspace")
    student.solve("shards", "zero", "clipping", "reshard")
    done = program(f"{FLAGS}{dataset.flags}{OPTIM}--save {student.home}/kept --save-interval 2",
                   2, student)
    assert done.returncode == 0, done.stderr
    return student


def program(flags, ranks, student, start=main):
    return run_program(start, [SCRIPT, *shlex.split(flags)], ranks=ranks, timeout=200,
                       cwd=CODE.parent, env={**os.environ, "LAB_HOME": str(student.home)})


@pytest.fixture
def load(saved, dataset, tmp_path):
    """Change a copy of the checkpoint, load it on one process, and return the error."""
    def run(change, more=""):
        copy = tmp_path / "copy"
        shutil.copytree(saved.home / "kept", copy)
        change(copy)
        done = program(f"{FLAGS}{dataset.flags}--load {copy} {more}", 0, saved)
        assert done.returncode == 1, done.stdout
        (error,) = re.findall(r"^\[rank 0\] error: (.*)$", done.stderr, re.M)
        assert error.startswith(f"--load {copy}: {copy}/") or f"there is no {copy}/" in error
        return error.replace(f"{copy}/", "").partition(": ")[2]

    return run


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


LAST = "iter_0000004"
OTHERS = "; latest could name one of: iter_0000002"


@pytest.mark.parametrize(("change", "message"), [
    (lambda copy: flip(copy / LAST / "rank_001.bin", 1000),
     rf"{LAST}/rank_001.bin is damaged: its checksum of masters, unit 0, differs"),
    (lambda copy: os.truncate(copy / LAST / "rank_000.bin", 1000),
     rf"{LAST}/rank_000.bin is incomplete: it has 1000 bytes instead of \d+"),
    (lambda copy: os.unlink(copy / LAST / "rank_001.bin"), rf"there is no {LAST}/rank_001.bin"),
    (lambda copy: flip(copy / LAST / "layout.json", 200),
     rf"{LAST}/layout.json is not what my_trainer.py saves \(.*\)"),
    (lambda copy: (copy / "latest").write_text("iter_0000004_2"),
     "latest names 'iter_0000004_2', which is no folder there")],
    ids=["flipped", "truncated", "removed", "layout", "latest"])
def test_a_damaged_file_is_named(load, change, message):
    assert re.match(message + OTHERS, load(change))


@pytest.mark.parametrize(("flags", "message"), [
    ("--hidden-size 64", "--hidden-size 32, and this run has 64; nearest: --hidden-size 32"),
    ("--global-batch-size 8", "--global-batch-size 16, and this run has 8")])
def test_another_model_s_checkpoint_is_refused(load, flags, message):
    assert f"{LAST}/layout.json is another model's: it was saved with {message}" in load(
        lambda copy: None, flags)


def test_another_vocabulary_is_refused(load):
    assert "another model's: stage.embedding.word_embeddings.weight has the shape [" in load(
        lambda copy: None, "--make-vocab-size-divisible-by 1000")


def test_only_what_a_rank_needs_is_read(saved, tmp_path):
    """Damage in a part that is not asked for goes unnoticed."""
    folder = shutil.copytree(saved.home / "kept" / LAST, tmp_path / LAST)
    layout = checkpoints.read_layout(folder)
    assert layout["iteration"] == 4 and layout["ranks"] == 2 and len(layout["units"]) == 3
    sizes = [-(-sum(math.prod(layout["shapes"][name]) for name in names) // 2)
             for names in layout["units"]]
    units = [(names, SimpleNamespace(shard_size=size))
             for names, size in zip(layout["units"], sizes, strict=True)]
    flip(folder / "rank_001.bin", 4 * (2 * sum(sizes) + sizes[0]))  # exp_avg_sq of unit 1
    files = checkpoints.ShardFiles(folder, units, layout["crc32"])
    assert files.reader("exp_avg")(1, 2, 3, 9).abs().min() > 0
    for rank, unit in ((0, 1), (1, 0), (1, 2)):
        assert len(files.reader("exp_avg_sq")(rank, unit, 0, 5)) == 5
    with pytest.raises(UserError, match=r"rank_001\.bin is damaged: .* of exp_avg_sq, unit 1, "):
        files.reader("exp_avg_sq")(1, 1, 0, 5)


def killed_while_saving():
    """Run the loop; the second save ends in the middle of its first file."""
    write = checkpoints.Checkpoints._shard
    calls = []

    def dying(self, kind, names, layout):
        calls.append(kind)
        if calls.count("masters") > len(self.units) + 1:
            os._exit(9)
        return write(self, kind, names, layout)

    checkpoints.Checkpoints._shard = dying
    main()


def test_a_killed_save_leaves_the_last_good_checkpoint(saved, dataset, tmp_path):
    """The run resumes from step 2, and its own save removes what the killed one has left."""
    flags = f"{FLAGS}{dataset.flags}{OPTIM}--save {tmp_path} --save-interval 2 --load {tmp_path}"
    assert program(flags, 2, saved, start=killed_while_saving).returncode != 0
    assert (tmp_path / "latest").read_text() == "iter_0000002"
    assert (tmp_path / ".unfinished_iter_0000004").is_dir()
    done = program(flags, 2, saved)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"iteration +(\d+)/", done.stdout) == ["3", "4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "iter_0000002", "iter_0000004", "latest"]
    for rank in range(2):
        mine, theirs = ((folder / LAST / f"rank_00{rank}.bin").read_bytes()
                        for folder in (tmp_path, saved.home / "kept"))
        assert zlib.crc32(mine) == zlib.crc32(theirs)  # bit by bit as without the interruption


def test_a_folder_is_never_replaced(saved, dataset, tmp_path):
    """A run that saves a step again writes beside it, and `latest` names the new folder."""
    folder = tmp_path / f"{checkpoints.UNFINISHED}{LAST}"
    for expected in (LAST, f"{LAST}_2", f"{LAST}_3"):
        folder.mkdir()
        checkpoints.publish(folder, {"iteration": 4})
        assert (tmp_path / "latest").read_text() == expected
        assert checkpoints.read_layout(checkpoints.latest(tmp_path)) == {"iteration": 4}
    assert json.loads((tmp_path / LAST / "layout.json").read_text())["layout"]


def test_a_folder_that_cannot_be_written_is_named(saved, dataset, tmp_path):
    (tmp_path / "file").write_text("")
    done = program(f"{FLAGS}{dataset.flags}{OPTIM}--save {tmp_path}/file --save-interval 2", 2,
                   saved)
    assert f"error: --save {tmp_path}/file: [Errno 20] Not a directory" in done.stderr
    assert "; earlier checkpoints are intact" in done.stderr


@pytest.mark.parametrize(("old", "new", "message"), [
    ("    return shards", "    return shards[1:]",
     r"reshard returns shards of \[.*\] elements instead of \["),
    ("read(source, unit, offset, offset + end - at)",
     "read(source, unit, offset, 10**9)[:end - at]",
     r"read\(0, \d+, 0, 1000000000\) asks for elements of a shard that has \d+")])
def test_a_wrong_reshard_is_named(saved, dataset, student, my_trainer, old, new, message):
    student.solve("shards")
    student.change("reshard", old, new)
    run = my_trainer(f"{FLAGS}{dataset.flags}--load {saved.home}/kept", code=1)
    assert re.search("error: --load .*: mytrainer/reshard.py: " + message, run.err), run.err


def test_a_load_folder_without_a_checkpoint_starts_at_step_1(saved, dataset, tmp_path):
    done = program(f"{FLAGS}{dataset.flags}--load {tmp_path}", 0, saved)
    assert f"could not find the metadata file {tmp_path}/latest" in done.stdout
    assert re.findall(r"iteration +(\d+)/", done.stdout) == ["1", "2", "3", "4"]


def generated(load, student, code=0):
    words = ["--device", "cpu", "--load", str(load), "--prompts", "import os", "def ",
             "--num-tokens-to-generate", "20"]
    done = run_program(generate.main, [str(CODE / "generate.py"), *words], timeout=200,
                       env={**os.environ, "LAB_HOME": str(student.home)})
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_the_model_generates_the_text_of_the_trainer_s(saved, train, dataset, tmp_path):
    train(f"{FLAGS}{dataset.flags}--save {tmp_path} --save-interval 4", base="")
    text = generated(saved.home / "kept", saved)
    assert text == generated(tmp_path, saved) and text.startswith("import os")


def test_why_no_text_can_be_generated_is_named(saved, tmp_path):
    copy = shutil.copytree(saved.home / "kept", tmp_path / "copy")
    empty = SimpleNamespace(home=tmp_path / "none")
    assert "needs mytrainer/shards.py, which you write in lab 08" in generated(copy, empty, 1)
    (empty.home / "mytrainer").mkdir(parents=True)
    (empty.home / "mytrainer" / "shards.py").write_text("1 +")
    assert "mytrainer/shards.py" in generated(copy, empty, 1)
    flip(copy / LAST / "rank_001.bin", 1000)
    assert "rank_001.bin is damaged" in generated(copy, saved, 1)
    path = copy / LAST / "layout.json"
    layout = checkpoints.read_layout(path.parent)
    del layout["text"]
    text = json.dumps(layout)
    path.write_text(json.dumps({"crc32": zlib.crc32(text.encode()), "layout": text}))
    assert "is from before text could be generated from it: save again" in generated(copy, saved, 1)
