"""Programs as people write them run unmodified, or stop by name."""

import re
from pathlib import Path

import pytest
import torch

import virtualgpu
from virtualgpu.launch import report
from virtualgpu.launch.cluster import parse
from virtualgpu.pytorch.unknown import FINITE, IN_JSON, PRINTED

from .running import SCRIPTS, printed, run

pytestmark = pytest.mark.slow  # ranks that run whole programs

FEATURES = {
    "oom": r"batch 524288, 64 GiB",
    "streams": r"one 2\.711 ms, two streams 2\.719 ms\n",
    "memory": r"1 2\nNVIDIA H100 80GB HBM3 \(9, 0\) 1",
    "inference": r"\(64, 4096\) torch.float16 True",
    "devices": (r"at least two devices, cuda:0 and cpu!\n.*mat2 is on cpu, different from other "
                r"tensors on cuda:0 \(when checking argument in method wrapper_CUDA_mm\)\n"
                r".*wrapper_CUDA_cat\)\n18.0 27.0\ncan't convert cuda:0 device type"),
    "scaled": r"\(1024, 512\) torch.bfloat16",
    "values": (r"tensor\(\[\[ 5., 14.\],\n *\[14., 50.\]\], device='cuda:0'\) .* 5 cpu 15.0\n"
               r"decided\ntensor\(\?, size=\(\), dtype=torch.float32, device='cuda:0'\) \? "),
    "pinned": r"False True True True 4.0\ncannot pin 'torch.cuda.FloatTensor' only dense CPU",
    "checkpoint_file": r"cuda:0 True 1",
    "deepcopy": r"True True",
    "loader": r"2016 cuda:0",
    "convolution": r"\(64, 3, 3, 3\)",
    "profiler": r"True",
    "dcp": (r"cuda:0 True\n.*features.py, line \d+ .*: torch.distributed.checkpoint writes values, "
            r"and those of \['model'\]\['weight'\] were not computed: skip the checkpoint.*\nTrue"),
    "offload": (r"(cuda:0 cpu cpu\n){2}Parameter containing:\n"
                r"tensor\(\?, size=\(1024,\), dtype=torch.float32, requires_grad=True\) cpu\n"
                r"cpu 1.0"),
    "host": (r"tensor\(\?, size=\(4,\), dtype=torch.float32\) \? \? cpu\n"
             r"tensor\(\?, size=\(4,\), dtype=torch.float32\) \?\n\[\? \? \? \?\]\n"
             r".*features.py, line \d+ .*becomes a numpy array, but its values were not.*\n"
             r"tensor\(\[0., 0., 0., 0.\]\) \[0. 0. 0. 0.\]"),
}


@pytest.mark.parametrize("feature", FEATURES)
def test_what_programs_ask_cuda(feature):
    (text,) = printed("features", feature)
    assert re.search(FEATURES[feature], text), text


def test_values_that_pass_for_finite_or_print_as_nan_are_assumptions():
    (rank,) = run("features", "finite")
    assert rank.error is None
    assert rank.value == (
        "False True {\"loss\": null} nan\ntensor(?, size=(2,), dtype=torch.float32) "
        "tensor(?, size=(2,), dtype=torch.float32, device='cuda:0')\n{'loss': ?}\n")
    said = {one.text for one in rank.assumptions}
    assert {FINITE, IN_JSON, PRINTED} <= said, said


STOPS = {
    "graphs": r"NoValue: .*features.py.* CUDA graphs are not modeled",
    "triton": (r"ModuleNotFoundError: No module named 'triton'\n.*\nthe program imports 'triton', "
               r"which is not installed in this Python environment"),
    "leaves": r"SystemExit: the program exited with 3",
    "decides": (r"NoValue: .*features.py, line \d+: `if loss.item\(\) < best:` branches on a "
                r"value.*--assume .*features.py:\d+=True\|False, or run a tiny "
                r"model with --values all"),
}


@pytest.mark.parametrize("feature", STOPS)
def test_what_stops_by_name(feature):
    (rank,) = run("features", feature)
    said = f"{rank.error}\n{rank.message}"
    assert re.match(STOPS[feature], said, re.S), said


def test_the_user_can_say_how_a_line_decides():
    (rank,) = run("features", "decides")
    line = re.search(r"features.py:\d+", rank.error)[0]
    for answer, outcome in ((True, "saved"), (False, "kept")):
        (rank,) = run("features", "decides", assume=[f"{line}={answer}"])
        assert (rank.error, rank.value) == (None, f"{outcome}\n")
        assert any("set by --assume" in one.text for one in rank.assumptions)
    (rank,) = run("features", "decides", values=2**40)
    assert (rank.error, rank.value) == (None, "saved\n")


def reads():
    """Read a few numbers of a large tensor, and decide by others."""
    x = torch.empty(2048, 2048, device="cuda")
    norms = torch.stack([x.norm(), x[0].norm()])
    return [x.abs().amax().item(), int(x.max()), float(x.sum().cpu()), norms.tolist(),
            x[3, 4].item(), bool(x.amax() == 0), bool((x == 0).all()), bool((x != 0).any()),
            bool(x.any()), bool(torch.isfinite(x).all()), bool((x.isnan() | x.isinf()).any()),
            x.numel(), bool(norms.norm() > 1), torch.frexp(448 / x.abs().max()).exponent.item()]


def compares():
    x = torch.empty(2048, 2048, device="cuda")
    return bool((x == x.t()).all())


def test_a_few_numbers_of_large_tensors_may_be_typical_ones():
    (rank,) = virtualgpu.run(reads, typical=1.0)
    assert rank.error is None
    assert rank.value == [1.0, 1, 1.0, [1.0, 1.0], 1.0, False, False, True, True, True, False,
                          2**22, True, 9]
    assert "a number that was not computed is 1" in {one.text for one in rank.assumptions}
    for typical, advice in ((1.0, "torch.where(condition, a, b)"), (None, "--assume")):
        (rank,) = virtualgpu.run(compares, typical=typical)
        assert "branches on a value" in rank.error and advice in rank.error


def figures(text):
    """Loss, milliseconds of the last step, and MiB at the peak."""
    last = re.findall(r"loss (\S+), norm \S+, (\S+) ms", text)[-1]
    return last[0], float(last[1]), float(re.search(r"peak (\S+) MiB", text)[1])


def gpt(*arguments, **options):
    (text,) = printed("gpt", "--layers=2", *arguments, **options)
    return figures(text)


def test_a_training_loop_is_faster_and_smaller_where_it_would_be():
    plain, half = ("?", 18.461, 6237.4), ("?", 12.52, 5205.0)
    assert gpt("--dtype=float32") == plain
    assert gpt("--dtype=bfloat16", "--fused") == half
    assert gpt("--dtype=float16") == ("?", 14.376, half[2])  # gradients are unscaled and checked
    assert gpt("--dtype=float32", "--recompute=full") == ("?", 20.384, 5492.2)
    assert gpt("--dtype=float32", "--recompute=selective") == ("?", 19.718, 5924.2)
    assert gpt("--dtype=float32", "--compile") == ("?", 16.286, 3267.1)


def test_a_tiny_model_computes_its_losses():
    tiny = ["--width=64", "--context=16", "--batch=2", "--vocabulary=64", "--dtype=float32"]
    loss, _, _ = gpt(*tiny, "--steps=1")
    assert 3.5 < float(loss) < 5  # ln 64 = 4.16
    assert gpt(*tiny, "--steps=1", values=0)[0] == "?"


@pytest.mark.parametrize(("model", "peaks"), [("llama", (1124, 1124)), ("gpt2", (762, 1057))])
def test_hugging_face_models(model, peaks):
    from transformers import GPT2LMHeadModel, LlamaForCausalLM  # noqa: F401  before the forks

    (text,) = printed("hugging_face", model)
    assert text == "".join(f"step {step}: loss ?, {peak} MiB\n" for step, peak in enumerate(peaks))


def test_the_program_of_the_documentation(capsys):
    """Its output and its report are on the page, to the last digit."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "virtualrun.md").read_text()
    title, program = (SCRIPTS / "train.py").read_text().split("\n\n", 1)
    assert program in page
    (rank,) = run("train", gpus="h100:8", nodes=2, present=[0])
    assert rank.error is None and rank.value in page
    report.show(parse("h100:8", 2), [rank])
    skipped = len(title.splitlines()) + 1  # lines of the file that the page does not show
    said = re.sub(r"\S+/train.py:(\d+)", lambda found: f"train.py:{int(found[1]) - skipped}",
                  capsys.readouterr().err)
    assert said in page
