"""`lab mytrainer` in its states."""

import re
import sys
from argparse import Namespace

import pytest

from lab import cli
from lab.mytrainer import cli as mytrainer
from lab.mytrainer import gain, journey, pieces, selfcheck, worked
from lab.mytrainer.pieces import EXTENDED, PIECES
from labcore import workspace
from labcore.errors import LabError
from tests.lab.mytrainer.conftest import WORKED, forget

pytestmark = pytest.mark.slow

STUB = "def all_reduce(tensor):\n    raise NotImplementedError('Your turn: ...')\n"
STUB_OF_DDP = STUB.replace("all_reduce(tensor)", "DataParallel(module, bucket_mb)")
SMALL = gain.MODEL.replace("--num-layers 12 --hidden-size 768", "--num-layers 2 --hidden-size 192")


def unpadded(text):
    """Return a table with one space between its columns."""
    return re.sub(" +", " ", text)


@pytest.fixture
def lab(student, monkeypatch, capsys):
    """Run the command with plain text; returns exit code, output, and errors."""
    monkeypatch.setattr("lab.mytrainer.cli.good", str)
    monkeypatch.setattr("lab.mytrainer.cli.bad", str)
    monkeypatch.setattr("lab.mytrainer.cli.strong", str)

    def run(*words):
        code = cli.main(["mytrainer", *words])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def text(student, dataset, monkeypatch):
    """The workspace has text to train on, and the model is small."""
    (student.home / "data").mkdir()
    (student.home / "data" / "bpe-4096").symlink_to(dataset.folder)
    monkeypatch.setattr(gain, "MODEL", SMALL)
    monkeypatch.setattr(journey, "FAMILY", (
        ("small", 2, 192, 12), ("medium", 2, 1024, 16), ("huge", 2, 65_536, 64)))


def rows(out):
    """The words of the rows of the table of measurements."""
    return [line.split() for line in out.splitlines()
            if re.match(r" +[\d,]+ +[\d,]+ +[\d.]+x", line)]


def test_without_pieces_one_gpu_is_measured(lab, text):
    code, out, err = lab()
    assert (code, err) == (0, "")
    assert "mytrainer/ddp.py data parallelism not written yet: lab 04 has" in unpadded(out)
    assert "\nMore than one GPU needs mytrainer/ddp.py.\n" in out
    assert out.splitlines()[-1] == "  log                    the course's" and "yours" not in out


def test_on_virtual_gpus_recomputation_takes_less_memory_and_more_time(text, student):
    student.solve("saved", "states", "checkpointing", "placement", "attention", "offload")
    flags = SMALL.replace("--use-flash-attn", "") + "--micro-batch-size 8 "
    full = "--recompute-granularity full --recompute-method uniform "
    plain, selective, uniform, planned, tiled, offloaded = (
        gain.measure("v100:1", flags=flags + more, steps=2) for more in (
            "", "--recompute-granularity selective", full, "--activation-memory-mb 900",
            "--tiled-attention", "--offload-activations"))
    assert uniform.peak < selective.peak < plain.peak and tiled.peak < plain.peak
    assert plain.seconds < selective.seconds < uniform.seconds
    assert offloaded.peak < plain.peak and plain.seconds < offloaded.seconds
    assert uniform.peak < planned.peak < plain.peak
    assert plain.seconds < planned.seconds < uniform.seconds


def test_on_virtual_gpus_autocast_is_faster_than_fp32_and_not_quite_as_fast_as_bf16(text, student):
    student.solve("precision", "autocast")
    flags = SMALL.replace("--hidden-size 192", "--hidden-size 1536")
    plain, cast, half = (gain.measure("h100:1", flags=flags + more, steps=2)
                         for more in ("", "--bf16 --autocast", "--bf16"))
    assert half.seconds < cast.seconds < plain.seconds / 2


def test_on_virtual_gpus_stochastic_rounding_needs_no_master_weights(text, student):
    """The zeros are counted as well, although nobody sees their number."""
    student.solve("precision", "rounding", "histogram")
    masters, none = (gain.measure("h100:1", flags=f"{SMALL} --bf16 {more}", steps=2)
                     for more in ("--log-num-zeros-in-grad", "--stochastic-rounding"))
    assert none.peak < masters.peak and masters.seconds < none.seconds


def test_the_map_shows_whose_part_is_whose_and_what_each_lab_has_brought(lab, text, student):
    """A later lab adds a row; the page has what the terminal has."""
    student.solve("collectives", "ddp", "launch", "train")
    code, out, err = lab("--html", str(student.home / "map.html"))
    assert (code, err) == (0, "")
    assert "mytrainer/collectives.py ring all-reduce works on 2 ranks" in unpadded(out)
    one, eight = rows(out)
    assert one[:1] == ["1"] and eight[:1] == ["8"] and one[2] == "1.00x"
    assert 1 < float(eight[2].rstrip("x")) <= 8
    assert "\n  training loop          yours, mytrainer/train.py\n" in out
    assert "\n  model                  the course's\n" in out
    assert re.search(r"\nFive losses on 2 rank\(s\) and those of pretrain_gpt.py "
                     r"(agree in all digits|differ by at most \d\.\de-0[67])", out), out
    assert re.search(r"^lab 04 .* medium; medium$", out, re.M)
    page = (student.home / "map.html").read_text()
    assert page.count('class="yours"') == 4 and "<td>lab 04</td>" in page and "medium" in page
    student.solve("fp8")
    later = [line.split()[:2] for line in journey.table(journey.note(journey.measure("lab 13")))]
    assert later[1:] == [["lab", "04"], ["lab", "13"]]


def test_the_rows_of_labs_05_and_06_train_with_the_files_of_these_labs(text, student):
    """In bf16, recomputation takes less memory and more time; rows are kept in the labs' order."""
    student.solve("ddp", "precision", "states", "checkpointing")
    six, five = (journey.measure(lab) for lab in ("lab 06", "lab 05"))
    assert six.precision == five.precision == "BF16"
    assert six.peak < five.peak and six.tokens < five.tokens
    assert six.tokens_1024 < five.tokens_1024 and "none" not in (six.largest, five.largest)
    assert journey.note(six) == [six] and journey.note(five) == [five, six] == journey.noted()
    rows = [line.split()[:3] for line in journey.table([five, six])]
    assert rows[1:] == [["lab", "05", "BF16"], ["lab", "06", "BF16"]]
    student.write("precision", "def MixedPrecision(*_):\n    raise ValueError('mine')\n")
    with pytest.raises(LabError, match=r"mytrainer/precision\.py, line 2: ValueError: mine"):
        journey.measure("lab 05")  # the row needs the student's file


def test_a_lab_has_a_row_once_the_files_that_its_flags_need_work():
    assert journey.latest_lab({"ddp", "delayed", "mx"}) == "lab 04"
    assert journey.latest_lab({"ddp", "precision", "scaler"}) == "lab 05"
    assert journey.latest_lab({"ddp", "precision", "checkpointing"}) == "lab 06"
    assert journey.latest_lab({"ddp", "fp8"}) == "lab 13"
    assert journey.latest_lab({"ddp", "checkpointing", "prefetch"}) == "lab 06"
    assert journey.latest_lab({"ddp", "checkpointing", "prefetch", "clipping"}) == "lab 08"


def test_damaged_notes_of_the_map_are_named_and_kept(student):
    notes = student.folder / "journey.json"
    notes.write_text('[{"lab": "lab 04"}]')
    with pytest.raises(LabError, match=r"^mytrainer/journey\.json is not what .*; delete it"):
        journey.noted()
    assert notes.read_text() == '[{"lab": "lab 04"}]'


def test_a_model_that_fits_nowhere_is_none(monkeypatch):
    for fitting in range(-1, len(journey.FAMILY)):
        monkeypatch.setattr(journey, "_fits", lambda at, *_, most=fitting: at <= most)
        assert journey._largest("", 1, -1) == fitting
        if fitting >= 0:
            assert journey._largest("", 128, 0) == journey._largest("", 128, fitting) == fitting


def test_a_loop_that_trains_another_way_is_seen_on_the_map(lab, text, student):
    student.solve("ddp")
    student.change("train", "/ len(micro_batches)", "")
    assert journey.loss_difference(2) > 1e-4


def test_a_folder_that_does_not_exist_is_refused(lab, student):
    with pytest.raises(LabError, match=r"--html none/map.html: .*/none is no folder; nearest: "
                                       r"--html map\.html"):
        mytrainer.run(Namespace(force=False, worked=None, adopt=None, html="none/map.html"))
    with pytest.raises(LabError, match=r"--html map\.html: --worked and --adopt draw no map"):
        mytrainer.run(Namespace(force=False, worked="ddp", adopt=None, html="map.html"))


def test_unlike_gpus_are_measured_with_equal_shares(lab, text, student, monkeypatch):
    student.solve("ddp")
    monkeypatch.setattr(mytrainer, "show_journey", lambda working, html: None)
    code, out, err = lab("--gpus", "a100:1x2,a10:1")
    assert (code, err) == (0, "")
    assert "on virtual a100 and a10 GPUs (modeled" in out
    assert "\nspeedup over one a100; all GPUs train on equally many samples\n" in out
    one, three = rows(out)
    assert one[:1] == ["1"] and three[:1] == ["3"]
    assert 0 < float(three[2].rstrip("x")) < 2  # the A100s wait for the A10


WIDE = (SMALL.replace("--num-layers 2 --hidden-size 192 --num-attention-heads 12",
                      "--num-layers 1 --hidden-size 4096 --num-attention-heads 32")
        .replace("--micro-batch-size 2", "--micro-batch-size 8"))


def test_fp8_layers_pay_off_in_a_wide_model_and_not_in_a_small_one(text, student):
    student.solve("fp8")
    fp8 = "--bf16 --fp8-format hybrid --fp8-recipe tensorwise"
    for model, faster in ((SMALL, False), (WIDE, True)):
        before, after = (gain.measure("h100", flags=f"{model} {flags}").seconds
                         for flags in ("--bf16", fp8))
        assert (after < before) == faster


def test_stubs_are_not_broken(lab, student):
    student.write("ddp", STUB_OF_DDP)
    code, out, err = lab()
    assert (code, err) == (0, "")
    assert "data parallelism not written yet: lab 04 has the exercise" in unpadded(out)
    assert out.splitlines()[-1] == ("Once mytrainer/ddp.py is written, `lab mytrainer` also "
                                    "measures what it gains.")


def test_a_stub_that_another_piece_calls_does_not_make_that_piece_unfinished(lab, student):
    student.write("collectives", STUB)
    student.change("ddp", "dist.all_reduce(flat, async_op=True)", "reduced(flat)")
    text = (student.folder / "ddp.py").read_text()
    student.write("ddp", text + "\n\nfrom mytrainer.collectives import all_reduce as reduced\n")
    code, out, err = lab()
    assert code == 1
    assert "ring all-reduce not written yet: lab 04 has the exercise" in unpadded(out)
    assert "data parallelism does not work" in unpadded(out)
    assert re.search(r"^  mytrainer/collectives.py, line 2: NotImplementedError: Your turn", err,
                     re.M)


def test_broken_pieces_are_named_and_nothing_is_measured(lab, student):
    student.write("collectives", STUB)
    student.change("ddp", "waiting.discard(parameter)", "waiting.drop(parameter)")
    code, out, err = lab()
    assert code == 1 and "virtual" not in out
    assert "ring all-reduce not written yet: lab 04 has the exercise" in unpadded(out)
    assert "data parallelism does not work" in unpadded(out)
    assert re.search(r"^  mytrainer/ddp.py, line \d+: AttributeError: 'set' object has no "
                     "attribute 'drop'$", err, re.M)


@pytest.mark.parametrize(("name", "old", "new", "message"), [
    ("collectives", "target += received", "target -= received",
     "mytrainer/collectives.py: after all_reduce of a tensor of length 1 on 2 ranks, rank "),
    ("ddp", "flat /= dist.get_world_size()", "pass",
     "after finish(), the gradient of words.weight is not the mean over the ranks: rank "),
    ("ddp", "dist.broadcast(tensor.detach(), src=0)", "pass",
     "after the constructor, parameter words.weight differs from rank 0's: rank 1 has"),
    ("ddp", "work.wait()", "dist.recv(torch.zeros(1), 1 - dist.get_rank())",
     "mytrainer/ddp.py: two ranks never finish; rank 0 waits in mytrainer/ddp.py, line "),
    ("launch", '"gloo"', '"nccl"', "RuntimeError: ProcessGroupNCCL is only supported with GPUs"),
    ("launch", "return device", "return None", "mytrainer/launch.py: on a CPU, connect() returns "
     "None and joins the other rank"),
    ("launch", "range(consumed + rank,", "range(consumed,", "launch.py: own_samples(0, 4, "),
    ("train", "model.finish()", "", "mytrainer/train.py: two steps log 1, "),
    ("train", "log(iteration,", "print(iteration,", "mytrainer/train.py: two steps log nothing"),
    ("new/ddp", "flat *= self.weight", "pass", "mytrainer/new/ddp.py: after begin() with two "
     "samples on rank 0 and one on rank 1, the gradient of words.weight is not the mean over all "
     "samples"),
    ("new/ddp", "def begin(", "def start(", "mytrainer/new/ddp.py: DataParallel has no begin()"),
    ("new/ddp", "if not self.synchronizes:", "if 1 / 0:", "mytrainer/new/ddp.py, line "),
    ("new/train", "        model.finish()\n        skipped = scaler is not None and scaler.unscale("
     "model.parameters())\n", "        skipped = scaler is not None and scaler.unscale("
     "model.parameters())\n        model.finish()\n",
     "mytrainer/new/train.py: the step after an overflow logs a loss of "),
    ("autocast", "else torch.float32", "else self.dtype", "mytrainer/autocast.py: in "
     "Autocast(torch.bfloat16), softmax of a bf16 tensor is in torch.bfloat16"),
    ("histogram", "exponent - 1", "exponent", "mytrainer/histogram.py: "),
    ("rounding", "generator=self.generator, ", "", "mytrainer/rounding.py: ranks 0 and 1 have "),
    ("rounding", "2**16, bits.shape", "2**15, bits.shape", "gaps on average instead of 16"),
    ("precision", "parameter.copy_(master)", "pass", "mytrainer/precision.py: "),
    ("unscale", "dist.all_reduce(overflow)", "pass", "mytrainer/unscale.py: "),
    ("scaler", "self.scale / 2", "self.scale / 4", "mytrainer/scaler.py: "),
    ("saved", "self.bytes += storage.nbytes()", "self.bytes += 1", "mytrainer/saved.py: "),
    ("states", "enabled=enabled", "enabled=False", "and it is off in a replay"),
    ("states", "self._write(before)", "pass", "and the next number after it is "),
    ("checkpointing", "if not torch.is_grad_enabled():", "if True:",
     "the function runs 2 times instead of 3"),
    ("placement", "held + saved[start] <= budget", "True", "bytes instead of at most "),
    ("placement", "(*plan, (start, stop))", "(*plan, (start + 8, stop + 8))", "for layers 0 to 3"),
    ("attention", 'scores.masked_fill(mask, float("-inf"))', "scores",
     "in blocks of 3, the output "),
    ("offload", "tensor.nbytes < self.least or", "True or",
     "the tensor that autograd saves stays"),
    ("delayed", "max(self.history)", "self.current",
     "mytrainer/delayed.py: after amaxes of 2, 0, 7, and 0.5, DelayedScale(448.0, 2, 1) has had"),
    ("amaxes", "dist.ReduceOp.MAX", "dist.ReduceOp.SUM",
     "on rank 0, and 1 and 8 on rank 1, share_amaxes returns [3, 8.5] on rank "),
    ("blocks", "quantize_blocks(x.t(), dtype, 1, 128)", "quantize_blocks(x.t(), dtype, 256, 128)",
     "mytrainer/blocks.py: a product of columns without an outlier is off by "),
    ("mx", "return mxfp8(x, dtype), mxfp8(x.t(), dtype)",
     "return mxfp8(x, dtype), mxfp8(x.t().contiguous().view(x.shape), dtype)",
     "mytrainer/mx.py: a product of columns has the shape [128, 128] instead of [256, 256]"),
    ("fp8", "return dx, dw, None", "return dx, None, None",
     "mytrainer/fp8.py: the gradient of the weight is None"),
    ("fp8", "dw = ctx.recipe.multiply(columns, (x, x_inverse), torch.float32)",
     "dw = grad.t() @ (x.float() * x_inverse).t() * 3",
     "the gradient of the weight of Linear(64, 32) differs")])
def test_a_wrong_piece_fails_its_self_check(student, name, old, new, message):
    student.solve("states", "unscale")  # which others import
    student.change(name, old, new)
    assert message in selfcheck.problem((PIECES | EXTENDED)[name])


def test_attention_that_holds_all_scores_fails_its_self_check(student):
    student.write("attention", """from torch.nn import functional as F


def attention(query, key, value, block=128):
    s = query.shape[1]
    scores = query @ key.mT / query.shape[-1]**0.5
    mask = query.new_ones(s, s).triu(1).bool()
    return F.softmax(scores.masked_fill(mask, float("-inf")), -1) @ value
""")
    assert "returns all scores at once" in selfcheck.problem(PIECES["attention"])


def test_the_loop_prints_nothing_even_in_a_notebook(student, text, tmp_path, monkeypatch):
    student.solve("ddp")
    with open(tmp_path / "cell.txt", "w") as cell:  # a notebook's sys.stdout is not file 1
        monkeypatch.setattr(sys, "stdout", cell)
        gain.measure("h100:8")
    assert (tmp_path / "cell.txt").read_text() == ""


def test_an_error_on_virtual_gpus_names_the_line(student, text):
    student.change("ddp", "work.wait()", "work.wait(); 1 / 0")
    with pytest.raises(LabError, match=r"^mytrainer/ddp.py, line \d+: ZeroDivisionError"):
        gain.measure("h100:8")


def test_an_error_of_the_loop_on_virtual_gpus_is_its_message_alone(student, text):
    with pytest.raises(LabError, match=r"^8 ranks need mytrainer/ddp\.py"):
        gain.measure("h100:8")


def test_bad_arguments(lab, text):
    code, out, err = lab("--gpus", "h999:8")
    assert (code, out) == (1, "") and err.startswith("lab: error: ") and "h999" in err
    code, _, err = lab("--force")
    assert (code, err) == (1, "lab: error: --force is only for --worked, which is not given\n")
    code, _, err = lab("--worked", "ddpp")
    assert code == 1 and err.endswith("nearest: ddp\n")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with one worked piece."""
    (tmp_path / worked.WORKED_FOLDER).mkdir(parents=True)
    (tmp_path / worked.WORKED_FOLDER / "ddp.py").write_text("worked = 1\n")
    monkeypatch.setattr(workspace, "CHECKOUT", tmp_path)


def test_the_worked_version_comes_only_on_request_and_never_over_the_students(
        lab, student, checkout):
    mine = student.folder / "ddp.py"
    assert lab("--worked", "ddp")[:2] == (0, "mytrainer/ddp.py is now the worked version\n")
    assert mine.read_text() == "worked = 1\n"
    assert lab("--worked", "ddp")[:2] == (0, "mytrainer/ddp.py is already the worked version\n")
    student.write("ddp", "mine = 1\n")
    code, _, err = lab("--worked", "ddp")
    assert code == 1 and "mytrainer/ddp.py is your own file; add --force" in err
    assert mine.read_text() == "mine = 1\n"
    for backup in ("ddp.mine.py", "ddp.mine2.py"):
        student.write("ddp", "mine = 1\n")
        code, out, _ = lab("--worked", "ddp", "--force")
        assert code == 0 and f"your version is now mytrainer/{backup}\n" in out
        assert mine.read_text() == "worked = 1\n"
        assert (student.folder / backup).read_text() == "mine = 1\n"


def test_without_a_worked_version_the_message_says_where_to_write_the_file(
        lab, student, checkout):
    todo = "You write mytrainer/launch.py in lab 04: do that exercise first"
    code, _, err = lab("--worked", "launch")
    assert code == 1 and todo in err
    (line,) = worked.install_or_explain(pieces.find("launch"))
    assert line.startswith("mytrainer/launch.py is missing") and todo in line
    assert not (student.folder / "launch.py").exists()
    assert worked.install_or_explain(pieces.find("ddp")) == [
        "mytrainer/ddp.py is now the worked version"]


def test_an_extended_version_takes_the_place_of_the_old_one_once_it_works(lab, student):
    student.solve("ddp")
    old = (student.folder / "ddp.py").read_text()
    assert lab("--adopt", "ddp")[::2] == (
        1, "lab: error: --adopt ddp: mytrainer/new/ddp.py does not exist; you write it in lab 14\n")
    for text, message in ((STUB_OF_DDP.split(":\n    ")[1], "mytrainer/new/ddp.py, line 1: "
                           "NotImplementedError: Your turn"),
                          (old, "--adopt ddp: mytrainer/new/ddp.py: DataParallel has no begin(); "
                           "mytrainer/ddp.py is unchanged")):
        student.write("new/ddp", text)
        code, _, err = lab("--adopt", "ddp")
        assert code == 1 and message in err
        assert (student.folder / "ddp.py").read_text() == old
        forget()
    student.write("new/ddp", new := (WORKED / "new/ddp.py").read_text())
    assert lab("--adopt", "ddp")[:2] == (
        0, "your version is now mytrainer/ddp.mine.py\nmytrainer/ddp.py is now a copy of "
        "mytrainer/new/ddp.py, which works on 2 ranks\n")
    assert (student.folder / "ddp.py").read_text() == new
    assert (student.folder / "ddp.mine.py").read_text() == old


@pytest.mark.parametrize(("words", "message"), [
    (("--adopt", "fp8"),
     "--adopt fp8: no lab extends mytrainer/fp8.py; nearest: --adopt train, ddp"),
    (("--adopt", "ddq"), "ddq: no piece of mytrainer/ has this name; nearest: ddp"),
    (("--adopt", "ddp", "--force"), "--force is only for --worked")])
def test_only_a_piece_that_a_lab_extends_is_adopted(lab, words, message):
    code, _, err = lab(*words)
    assert code == 1 and message in err


def test_the_worked_version_of_an_extended_piece_takes_its_place(lab, student):
    student.solve("ddp")
    code, _, err = lab("--worked", "new/ddp")
    assert code == 1 and "mytrainer/ddp.py is your own file; add --force" in err
    code, out, _ = lab("--worked", "new/ddp", "--force")
    assert code == 0 and out.endswith("mytrainer/ddp.py is now the worked version\n")
    assert "def begin" in (student.folder / "ddp.py").read_text()


def test_shares_by_speed_are_faster_on_unlike_gpus(text, student):
    """An A100 with three quarters of the samples waits less for an A10 than one with half."""
    student.solve("new/ddp")
    flags = SMALL + " --bf16 --global-batch-size 16 --samples-per-rank "
    equal, unequal, alone = (gain.measure("a100:1,a10:1", flags=flags + samples, alike=False)
                             for samples in ("8,8", "12,4", "16,0"))
    assert unequal.gpus == 2 and unequal.seconds < equal.seconds
    for one in (unequal, alone):
        assert one.tokens == pytest.approx(16 * 1024 / one.seconds, rel=1e-3)


def test_a_course_without_worked_pieces_says_so(lab, student, checkout):
    code, _, err = lab("--worked", "collectives")
    assert code == 1 and "has no worked version of mytrainer/collectives.py" in err
    assert list(student.folder.iterdir()) == []


def test_the_solutions_pass_their_self_checks(student):
    known, names = PIECES | EXTENDED, {str(path.relative_to(WORKED).with_suffix(""))
                                       for path in WORKED.rglob("*.py")}
    assert names == set(known) == set(selfcheck.TESTS)
    for name in names:
        student.write(name, (WORKED / f"{name}.py").read_text())
    assert {name: selfcheck.problem(piece) for name, piece in known.items()} == dict.fromkeys(known)


@pytest.mark.parametrize("name", PIECES)
def test_a_piece_that_only_raises_fails_its_self_check(student, name):
    student.solve(*(other for other in PIECES if other != name))
    student.write(name, "def fail(*_, **__):\n    raise ValueError('mine')\n"
                  + "".join(f"{defined} = fail\n" for defined in PIECES[name].defines))
    assert selfcheck.problem(PIECES[name]) == f"mytrainer/{name}.py, line 2: ValueError: mine"
