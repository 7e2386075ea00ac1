"""Programs that run inference: what the report says about tokens, time, memory, and bounds."""

import contextlib
import io
import json
import re

import pytest

from virtualgpu.core.eager import CALLS, MODULE_CALL, VIEW
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.launch import process, report
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.command import main
from virtualgpu.launch.inference_lines import inference
from virtualgpu.launch.process import script
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.pytorch.tokens import AS_NUMBER, NEVER

from .running import SCRIPTS

pytestmark = pytest.mark.slow  # ranks that run whole programs


def run(mode, gpu="h100", name="inference", **settings):
    """One rank's result; its value is what the program printed."""
    program = script(str(SCRIPTS / f"{name}.py"), [mode])

    def captured():
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            program()
        return printed.getvalue()

    (rank,) = run_ranks(parse(gpu), Settings(**settings), captured, None)
    assert (rank.error is None) == (mode != "mistake"), rank.message
    return rank


def test_a_loop_with_a_preallocated_cache():
    rank = run("static", eager_host=True)
    found = rank.account["inference"]
    assert (found["kind"], found["model"], found["count"], found["batch"], found["prompt_tokens"],
            found["output_tokens"]) == ("generation", "Decoder", 3, 2, 8, 10)
    # keys and values, batch, heads, positions, width of a head, bytes, layers
    assert found["kv_cache"] == {"bytes": 2 * 2 * 4 * 64 * 64 * 2 * 2, "preallocated": True,
                                 "context_tokens": 17, "bytes_per_token": None}
    assert found["bound_by"] == "host"
    assert sum(found["shares"].values()) == pytest.approx(1)
    assert rank.account["step"] is None
    # The program times itself, the choice of the last token included.
    for own in re.search(r"([\d.]+) tokens/s, ([\d.]+) by events", rank.value).groups():
        assert float(own) == pytest.approx(found["tokens_per_second"], rel=0.01)
    whole = found["first_token_seconds"] + 9 * found["token_seconds"]
    assert whole == pytest.approx(found["seconds"], rel=0.02)


def test_the_host_is_charged_for_operations_in_inference_only():
    eager, launches = (run("static", eager_host=on).account["inference"] for on in (True, False))
    assert eager["token_seconds"] > 1.4 * launches["token_seconds"]
    slower = run("static", gpu="a100", eager_host=True).account["inference"]
    assert slower["token_seconds"] > 1.6 * eager["token_seconds"]
    steps = [run("training", eager_host=on).account["step"]["seconds"] for on in (True, False)]
    assert steps[0] > steps[1]  # the evaluation after each step is inference


def test_a_training_step_without_evaluation_costs_what_it_did():
    assert run("steps", eager_host=True).seconds == run("steps").seconds


def test_without_a_cache_every_pass_computes_all_tokens_again():
    rank = run("uncached")
    found = rank.account["inference"]
    assert (found["prompt_tokens"], found["output_tokens"], found["kv_cache"]) == (3, 12, None)
    assert rank.value == "15 words\n"
    assert AS_NUMBER in {one.text for one in rank.assumptions}


@pytest.mark.parametrize("last, count", [(None, 20), (6, 5)])
def test_tokens_read_on_the_host_end_a_loop_where_the_user_says(last, count):
    rank = run("until_end", output_tokens=last)
    assert rank.value == f"{count} <?>\n"
    said = {one.text for one in rank.assumptions}
    assert (NEVER in said) == (last is None), said


@pytest.fixture(scope="module")
def transformers():
    """Import once what the forks use."""
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401


@pytest.mark.usefixtures("transformers")
@pytest.mark.parametrize("last, count", [(None, 10), (4, 4)])
def test_generate_ends_at_its_own_maximum_or_where_the_user_says(last, count):
    rank = run("transformers", output_tokens=last)
    found = rank.account["inference"]
    assert rank.value.startswith(f"(2, {8 + count}) ????")
    assert found["output_tokens"] == count and found["model"] == "LlamaForCausalLM"
    # layers, keys and values, heads, width of a head, bytes, sequences
    assert found["kv_cache"]["bytes_per_token"] == 2 * 2 * 2 * 64 * 2 * 2
    assert found["kv_cache"]["bytes"] == (8 + count - 1) * 2048
    assert not rank.unknown


@pytest.mark.usefixtures("transformers")
def test_texts_that_training_generates_end_where_the_user_says():
    rank = run("rollouts", output_tokens=5)
    assert rank.value == "13\n13\n"
    assert rank.account["inference"] is None and rank.account["step"]["count"] == 2


@pytest.mark.usefixtures("transformers")
def test_the_static_cache_of_transformers_and_the_graph_that_it_is_decoded_in():
    eager, graphed = (run(mode, eager_host=True).account["inference"]
                      for mode in ("transformers", "transformers_static"))
    # layers, keys and values, heads, width of a head, positions, bytes, sequences
    assert graphed["kv_cache"]["bytes"] - 2 * 2 * 2 * 64 * 17 * 2 * 2 < 2048
    assert graphed["kv_cache"]["preallocated"] and not eager["kv_cache"]["preallocated"]
    assert graphed["token_seconds"] < 0.5 * eager["token_seconds"]


def test_labels_are_no_tokens():
    rank = run("classifier")
    assert rank.value == "right ?\n"
    assert rank.account["inference"]["length"] == 0
    assert not rank.assumptions


def test_an_option_that_ends_nothing_is_reported():
    rank = run("static", output_tokens=3)
    assert rank.account["inference"]["output_tokens"] == 10
    assert any("--output-tokens 3 had no effect" in one.text for one in rank.assumptions)


def test_forward_passes_that_generate_nothing():
    found = run("encoder").account["inference"]
    assert (found["kind"], found["batch"], found["length"], found["count"]) == (
        "forward passes", 8, 16, 4)
    assert found["tokens_per_second"] == pytest.approx(16 * found["samples_per_second"])
    first, *_ = inference(found, "h100-80gb")
    assert re.fullmatch(r"inference      [\d.]+ ms per forward pass of Decoder, batch size 8 of 16 "
                        r"tokens; the median of 3 calls, except the first", first)


def test_a_program_with_an_optimizer_is_no_inference():
    account = run("training").account
    assert account["inference"] is None
    assert account["step"]["found_by"] == "optimizer steps (SGD)"


@pytest.mark.usefixtures("transformers")
def test_the_report(tmp_path, capfd):
    file = tmp_path / "report.json"
    rank, cluster = run("transformers", output_tokens=4, eager_host=True), parse("h100")
    report.show(cluster, [rank])
    report.write(str(file), cluster, [rank])
    said = capfd.readouterr().err
    found = json.loads(file.read_text())["ranks"][0]["inference"]
    for line in (r"inference      4 output tokens after a prompt of 8 tokens, batch size 2, in "
                 r"[\d.]+ ms: one generation, found by calls of LlamaForCausalLM",
                 rf"tokens/s       {found['tokens_per_second']:,.1f} on this rank",
                 rf"first token    {1e3 * found['first_token_seconds']:.3f} ms \(prefill\)",
                 rf"per token      {1e3 * found['token_seconds']:.3f} ms \(decode\)",
                 r"bound by       the host, while the GPU waits for launches \(\d+%\)",
                 r"KV cache       22.00 KiB after 11 tokens; 2.00 KiB per token of all sequences",
                 r"assumed        .*output token 4 is the end-of-text token"):
        assert re.search(line, said), (line, said)


@pytest.mark.usefixtures("transformers")
def test_the_program_of_the_documentation(capsys):
    """Its output and its report are on the page, to the last digit."""
    page = (SCRIPTS.parents[2] / "docs" / "virtualrun.md").read_text()
    _, program = (SCRIPTS / "generate.py").read_text().split("\n\n", 1)
    assert program in page
    rank = run("", name="generate", eager_host=True, output_tokens=8)
    report.show(parse("h100"), [rank])
    said = re.sub(r"\S+(?=/transformers/)", "...", capsys.readouterr().err)
    assert rank.value + said in page


def test_an_error_in_a_module_has_no_line_of_ours():
    said = run("mistake").message
    assert "missing 1 required positional argument: 'positions'" in said
    assert "in mistake" in said and "virtualgpu/export" not in said


@pytest.mark.parametrize("option, message", [
    (["--output-tokens", "0"], "--output-tokens 0: expected at least 1"),
    (["--host-cost", "none"], "invalid choice: 'none'")])
def test_bad_input(option, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(main([*option, str(SCRIPTS / "inference.py")]))
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options, eager, last", [
    ([], True, None), (["--host-cost", "launches", "--output-tokens", "7"], False, 7)])
def test_the_options_of_the_command(options, eager, last, monkeypatch):
    def become(_cluster, _rank, settings, _present):
        assert (settings.eager_host, settings.output_tokens) == (eager, last)
        raise VirtualGpuError("far enough")

    monkeypatch.setattr(process, "become", become)
    assert main([*options, str(SCRIPTS / "inference.py")]) == 2


def test_costs_are_positive_and_views_are_cheapest():
    assert min(CALLS.values()) > max(VIEW, MODULE_CALL) > 0
