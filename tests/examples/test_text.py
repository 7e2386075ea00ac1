"""The examples' inputs: running text, questions with padding, and a trained GPT-2."""

import pytest
import torch

import gpt_layers
import options
import setting
import text_batches
from labcore.errors import LabError
from minimegatron.data.tokenizer import GPT2BPETokenizer

from .conftest import ROWS


@pytest.fixture(autouse=True)
def here(in_home):
    pass


def read(*words):
    return setting.read(options.parser("").parse_args([str(word) for word in words]))


def test_running_text_is_cut_into_full_samples_whose_labels_are_the_next_tokens(in_home):
    run = read("--seq-length", 20)
    tokens, labels = run.samples
    assert tokens.shape == labels.shape and tokens.shape[1] == 20
    assert torch.equal(tokens.flatten()[1:], labels.flatten()[:-1])
    own = GPT2BPETokenizer(*options.PRESETS["tiny"].files[1:])
    assert own.detokenize(tokens[0].tolist()) == "0 The quick brown fo"


def test_batches_go_through_the_text_once_before_they_repeat_it():
    rows = torch.arange(6)[:, None]
    drawn = text_batches.batches(rows, rows, 2, seed=1)
    first = torch.cat([next(drawn)[0] for _ in range(3)]).flatten()
    second = torch.cat([next(drawn)[0] for _ in range(3)]).flatten()
    assert sorted(first.tolist()) == sorted(second.tolist()) == [*range(6)]
    assert not torch.equal(first, second)


@pytest.mark.parametrize("form", ["rows_file", "squad_file"])
def test_a_question_is_a_sample_and_its_padding_has_no_labels(request, form):
    length, file = 64, request.getfixturevalue(form)
    tokens, labels = read("--dataset", file, "--seq-length", length).samples
    own = GPT2BPETokenizer(*options.PRESETS["tiny"].files[1:])
    assert len(tokens) == len(ROWS)
    for row, (context, question, answers) in enumerate(ROWS):
        answer = answers[0] if answers else "(none)"
        text = f"{context}\nQuestion: {question}\nAnswer: {answer}"
        ids = [*own.tokenize(text), own.eod][:length + 1]
        count = len(ids) - 1
        assert tokens[row, :count].tolist() == ids[:-1]
        assert labels[row, :count].tolist() == ids[1:]
        assert (labels[row, count:] == gpt_layers.NO_LABEL).all()


def test_padding_changes_neither_loss_nor_gradient(rows_file):
    """A padded batch is worth what its samples are worth alone, without padding."""
    run = read("--dataset", rows_file, "--seq-length", 64)
    tokens, labels = (part[:4] for part in run.samples)
    whole, alone = (gpt_layers.GPT(run.size, 1) for _ in range(2))
    counted = (labels != gpt_layers.NO_LABEL).sum()
    loss = gpt_layers.loss_sum(whole(tokens), labels) / counted
    loss.backward()
    total = 0.0
    for some, theirs in zip(tokens, labels, strict=True):
        count = int((theirs != gpt_layers.NO_LABEL).sum())
        part = gpt_layers.loss_sum(alone(some[None, :count]), theirs[None, :count]) / counted
        part.backward()
        total += part.item()
    assert counted < labels.numel()
    assert loss.item() == pytest.approx(total, rel=1e-5)
    for ours, wanted in zip(whole.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, wanted.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_a_trained_gpt2_computes_what_transformers_computes(checkpoint):
    from transformers import GPT2LMHeadModel

    run = read("--pretrained", checkpoint, "--seq-length", 48)
    model = gpt_layers.GPT(run.size, 1)
    for index, layer in enumerate(model.layers):
        run.load(layer, index)
    tokens, _ = next(run.batches(3))
    theirs = GPT2LMHeadModel.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_workspaces_text_is_spelled_in_the_models_own_vocabulary(checkpoint):
    """Which is the text's own here, so that the tokens stay what they were."""
    ours, theirs = read("--seq-length", 20), read("--seq-length", 20, "--pretrained", checkpoint)
    assert theirs.pretrained.tokenizer.eod == 256
    assert torch.equal(ours.samples[0][:100], theirs.samples[0][:100])


def wrong_config(checkpoint, tmp_path, **changes):
    import json
    import shutil

    folder = tmp_path / "wrong"
    shutil.copytree(checkpoint, folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(("changes", "said"), [
    ({"activation_function": "relu"}, "its activation_function is relu; .* computes gelu_new"),
    ({"model_type": "llama"}, "its model_type is llama"),
    ({"n_inner": 77}, "its n_inner is 77")], ids=["relu", "llama", "width"])
def test_a_checkpoint_of_another_kind_is_refused(checkpoint, tmp_path, changes, said):
    with pytest.raises(LabError, match=said):
        read("--pretrained", wrong_config(checkpoint, tmp_path, **changes))


def test_without_a_network_the_user_is_told_what_to_give(in_home, tmp_path):
    with pytest.raises(LabError, match=r"--pretrained gpt2 cannot be loaded .*give a folder"):
        read("--pretrained", "gpt2")
    with pytest.raises(LabError, match=r"--dataset squad cannot be loaded .*give a file"):
        read("--dataset", "squad")
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"context": "a", "question": "b", "answers": {"text": ["c"]}}\n{"con')
    with pytest.raises(LabError, match=r"--dataset .*broken.jsonl cannot be loaded"):
        read("--dataset", broken)
    broken.write_text('{"text": "only"}\n')
    with pytest.raises(LabError, match="a row is not as SQuAD's are"):
        read("--dataset", broken)
