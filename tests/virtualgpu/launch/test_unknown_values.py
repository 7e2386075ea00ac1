"""What only shows a value shows that it is unknown; what branches on one names its line."""

import csv
import importlib.util
import io
import json
import math
import os
import pickle
import statistics
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import virtualgpu
from virtualgpu.core import gpu
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.ranks import run_ranks
from virtualgpu.launch.settings import Settings
from virtualgpu.pytorch import assumptions

pytestmark = pytest.mark.slow  # imports TensorBoard and tokenizers


def result(program, *assume):
    """Run a program on one GPU; it must not fail."""
    settings = Settings(answers=tuple(map(assumptions.parse, assume)))
    (rank,) = run_ranks(parse("h100"), settings, program)
    assert rank.error is None, rank.message
    return rank


def unknown():
    """Return an unknown loss, and the indices of the largest numbers in four unknown rows."""
    x = torch.randn(4, 2**18, device="cuda")
    return x.square().mean(), x.argmax(-1)


def shown():
    loss, ids = unknown()
    value, integer, array = loss.item(), ids[0].item(), loss.cpu().numpy()
    table = io.StringIO()
    csv.DictWriter(table, ["loss", "step"]).writerow({"loss": value, "step": 3})
    return [
        f"{value} {value:.3f} {array:.2f} {ids.cpu().numpy()} {ids.tolist()}",
        f"{float(loss)} {float(value):.3f} {'%.1f' % value}",  # noqa: UP031
        json.dumps({"loss": value, "id": integer}), json.dumps([value, integer], indent=1),
        table.getvalue(), str(divmod(integer, 3)), repr(round(value, 4)),
        *map(repr, (statistics.mean(iter([value, 1.0])), statistics.stdev([value, value]),
                    math.fsum([value, 1.0]), np.mean([value, 2.0]), np.round([value], 3)[0],
                    ids.cpu().numpy().mean(), np.exp(value), pickle.loads(pickle.dumps(value)))),
        str([isinstance(value, float), isinstance(integer, int), isinstance(value, int)]),
        str([torch.tensor([value, 1]).dtype, torch.tensor([integer, 1]).dtype]),
        str([torch.as_tensor(value), torch.from_numpy(ids.cpu().numpy()), torch.tensor(
            np.array([value, 1.0]), device="cuda")]),
        yaml.safe_dump({"loss": value, "id": integer}), str(checked(ids))]


def checked(ids):
    """Hugging Face's Trainer gathers the losses of an evaluation, and averages the finite ones."""
    losses = np.concatenate([ids.float().cpu().numpy(), np.array([np.inf, 1.0])])
    finite = np.isfinite(losses)
    return [finite.tolist(), np.isnan(losses).any(), losses[finite].mean(), (losses + 1)[0],
            pickle.loads(pickle.dumps(losses[:1]))]


def test_what_prints_averages_or_converts_shows_a_question_mark():
    text = ["? ? ? [? ? ? ?] [?, ?, ?, ?]", "nan nan nan", '{"loss": null, "id": null}',
            "[\n null,\n null\n]", "?,3\r\n", "(?, ?)", *["?"] * 9, "[True, True, False]",
            "[torch.float32, torch.int64]", "[tensor(?, size=(), dtype=torch.float32), tensor(?, "
            "size=(4,), dtype=torch.int64), tensor(?, size=(2,), dtype=torch.float32, "
            "device='cuda:0')]", "id: '?'\nloss: '?'\n",
            "[[True, True, True, True, False, True], np.False_, ?, ?, array([?], dtype=object)]"]
    assert result(shown).value == text


def logged(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter
    from tqdm import tqdm

    loss, ids = unknown()
    writer = SummaryWriter(folder)
    writer.add_scalar("loss", loss.item(), 0)
    writer.add_scalar("loss", loss, 1)
    writer.add_scalar("loss", 2.0, 2)
    writer.add_scalars("all", {"loss": loss.item()}, 0)
    writer.add_histogram("ids", ids, 0)
    writer.add_histogram("numbers", torch.ones(3), 0)
    writer.close()
    bar = io.StringIO()
    with tqdm(range(1), file=bar) as progress:
        progress.set_postfix(loss=loss.item(), ids=ids[0].item())
    events = EventAccumulator(folder)
    events.Reload()
    return ([repr(event.value) for event in events.Scalars("loss")],
            events.Tags()["histograms"], "ids=?, loss=?" in bar.getvalue())


def test_tensorboard_draws_no_point_and_a_progress_bar_shows_a_question_mark(tmp_path):
    rank = result(lambda: logged(str(tmp_path)))
    assert rank.value == (["nan", "nan", "2.0"], ["numbers"], True)
    noted = {one.text for one in rank.assumptions}
    assert "`nan` in torch.utils.tensorboard stands for a value that was not computed" in noted
    assert "add_histogram of values that were not computed logs nothing" in noted


def decoded():
    assert importlib.util.find_spec("tokenizers") is not None  # which imports nothing
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    ids = unknown()[1]
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    mixed = [0, 1, *ids.tolist(), 1]
    return [tokenizer.decode([0, 1]), tokenizer.decode(mixed), fast.decode(ids), fast.decode(
        ids[0]), *tokenizer.decode_batch([[0], mixed]), *fast.batch_decode(ids.view(2, 2))]


def test_a_tokenizer_decodes_unknown_tokens_as_question_marks():
    assert result(decoded).value == [
        "a b", "a b????b", "????", "?", "a", "a b????b", "??", "??"]


def decides():
    loss, ids = unknown()
    low = loss.item() < 2  # a number answers this comparison
    return low, {7: "seven"}[ids[0].item()]  # and this one, by value


def test_a_supplied_number_is_compared_and_looked_up():
    line = decides.__code__.co_firstlineno + 2
    file = Path(__file__).name
    with pytest.raises(AssertionError, match=rf"{file}, line {line}: `low = .*branches on a value"):
        result(decides)
    rank = result(decides, f"{file}:{line}=1.5", f"{file}:{line + 1}=7")
    assert rank.value == (True, "seven")


def test_lines_of_the_program_are_blamed_and_no_others():
    folder = Path(torch.__file__).parent
    assert gpu.is_library(f"{folder}/nn/init.py") and gpu.is_library(statistics.__file__)
    assert gpu.is_library(f"{folder.parent}/typing_extensions.py")  # around deprecated functions
    for program in (f"{folder}vision/models.py", f"{folder}titan/train.py", np.__file__, __file__,
                    f"{Path(virtualgpu.__file__).parent}_programs/train.py"):
        assert not gpu.is_library(program)


def launched():
    """Ask for the current line without a line of the program between here and the launcher."""
    code = compile("caller()", f"{gpu.PACKAGE}core/none.py", "eval")
    return eval(code, {"caller": gpu.caller, "__name__": "none"})


def test_nothing_outside_the_launcher_is_blamed():
    started = compile("run(code)", f"{gpu.LAUNCHER}process.py", "eval")
    inner = compile("caller()", f"{gpu.PACKAGE}core/none.py", "eval")
    asked = eval(started, {"run": eval, "code": inner, "caller": gpu.caller})
    assert asked == ("the program", 0, "")
    assert launched()[0] == __file__
    text = assumptions.describe_line(*asked)
    assert "line" not in text and "outside of the program" in text


def test_threads_and_finalizers_print_one_line(capfd, monkeypatch):
    def program():
        value = unknown()[0].item()

        class Held:
            def __del__(self):
                assert value < 1

        thread = threading.Thread(target=lambda: value < 1, name="reader")
        thread.start()
        thread.join()
        Held()
        thread = threading.Thread(target=lambda: {}["none"])
        thread.start()
        thread.join()

    monkeypatch.setattr("threading.excepthook", threading.__excepthook__)  # not pytest's
    result(program)
    text = capfd.readouterr().err
    assert text.count("Traceback") == 1 and "KeyError" in text  # the program's own error
    assert "rank 0: in thread reader, which ended: " in text
    assert "rank 0: in a finalizer or at exit, ignored by Python: " in text
    assert text.count(f"{os.path.basename(__file__)}, line ") == 2
