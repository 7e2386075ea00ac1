"""A learner's own schedule is read, or the error says where it went wrong."""

import re

import pytest

from pipeline_schedules import (
    Action,
    ScheduleError,
    gpipe,
    interleaved,
    load,
    one_f_one_b,
    parse,
    to_text,
    zb_h1,
)

PLAIN = """
def schedule(p, m):
    return [" ".join([f"F{k}" for k in range(m)] + [f"B{k}" for k in range(m)]) for _ in range(p)]
"""


def write(folder, name, text):
    path = folder / name
    path.write_text(text)
    return path


def test_the_published_ones_by_name():
    assert load("gpipe", 3, 5) == gpipe(3, 5)
    assert load("1f1b", 3, 5) == one_f_one_b(3, 5)
    assert load("interleaved", 3, 6, 2) == interleaved(3, 6, 2)
    assert load("zb-h1", 3, 5) == zb_h1(3, 5)


def test_a_function_called_schedule_that_returns_texts(tmp_path):
    assert to_text(load(write(tmp_path, "mine.py", PLAIN), 2, 2)) == ["F0 F1 B0 B1"] * 2


def test_a_function_with_the_file_s_name_that_returns_actions(tmp_path):
    path = write(tmp_path, "mine.py", "from pipeline_schedules import Action, one_f_one_b\n"
                 "def mine(p, m):\n    return one_f_one_b(p, m)\n")
    assert load(str(path), 3, 4) == one_f_one_b(3, 4)


def test_a_function_of_chunks_gets_them(tmp_path):
    path = write(tmp_path, "mine.py", "from pipeline_schedules import interleaved\n"
                 "def schedule(p, m, v=2):\n    return interleaved(p, m, v)\n")
    assert load(path, 2, 4, 3) == interleaved(2, 4, 3)
    assert load(path, 2, 4) == interleaved(2, 4, 2)  # its own default


def test_a_json_file_of_texts_or_of_lists(tmp_path):
    path = write(tmp_path, "mine.json", '["F0 F0.1 B0.1 B0", ["F0", "F0.1", "B0.1", "B0"]]')
    expected = [Action("F", 0), Action("F", 0, 1), Action("B", 0, 1), Action("B", 0)]
    assert load(path, 2, 1, 2) == [expected, expected]


def test_an_edited_file_is_read_again(tmp_path):
    path = write(tmp_path, "mine.py", "def schedule(p, m):\n    return ['F0 B0']\n")
    load(path, 1, 1)
    write(tmp_path, "mine.py", "def schedule(p, m):\n    return ['F1 B1']\n")
    assert to_text(load(path, 1, 1)) == ["F1 B1"]
    assert list(tmp_path.iterdir()) == [path]


def test_texts_come_back_as_they_were():
    for schedule in (gpipe(2, 3), interleaved(2, 4, 2), zb_h1(3, 4)):
        assert parse(to_text(schedule)) == schedule


@pytest.mark.parametrize("name, hint", [
    ("1F1B", "did you mean 1f1b?"), ("zb_h1", "did you mean zb-h1?"),
    ("gpip", "did you mean gpipe?"), ("dualpipe", "gpipe, 1f1b, interleaved, zb-h1, zb-h2, zbv"),
    ("", "nor a .py or .json file"), ("mine.txt", "nor a .py or .json file")])
def test_an_unknown_name_is_refused_with_the_nearest(name, hint):
    with pytest.raises(ScheduleError, match=f"^schedule {re.escape(repr(name))}: .*"
                                            + re.escape(hint)):
        load(name, 2, 2)


def test_chunks_where_there_are_none():
    with pytest.raises(ScheduleError, match=r"1f1b has one chunk per stage, not 2; .*interleaved"):
        load("1f1b", 2, 2, 2)


@pytest.mark.parametrize("name", ["mine.py", "mine.json"])
def test_a_file_that_is_not_there(tmp_path, name):
    write(tmp_path, name.replace("mine", "mime"), "")
    with pytest.raises(ScheduleError, match=f"{name}: No such file .* did you mean .*mime"):
        load(tmp_path / name, 2, 2)
    with pytest.raises(ScheduleError, match="No such file"):
        load(tmp_path / "nowhere" / name, 2, 2)


def test_a_folder_and_bytes_are_no_schedule(tmp_path):
    (tmp_path / "folder.py").mkdir()
    with pytest.raises(ScheduleError, match=r"folder\.py: Is a directory"):
        load(tmp_path / "folder.py", 2, 2)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ScheduleError, match=r"bytes\.json: not UTF-8 text"):
        load(tmp_path / "bytes.json", 2, 2)


@pytest.mark.parametrize("text, message", [
    ("", r"line 1, column 1: Expecting value"),
    ('["F0 B0",\n "F0 B0"', r"line 2, column 9: "),
    ("[" * 100_000, "not a list of stages"),
    ("[" + "1" * 5000 + "]", "not a list of stages"),
    ('{"stages": []}', "a list with one entry per stage, not a dict"),
    ('"F0 B0"', "a list with one entry per stage, not a str"),
    ("[3]", r'stage 0: write its actions as a string, "F0 B0", or as a list, not as a int'),
    ('["F0 B0", "F0 X0"]', "stage 1, position 1: 'X0' is not an action; write F, B, or W"),
    ('["F0 B"]', "stage 0, position 1: 'B' is not an action"),
    ('["F0,B0"]', "stage 0, position 0: 'F0,B0' is not an action"),
    ('["f0 b0"]', "stage 0, position 0: 'f0' is not an action"),
    ('["F-1"]', "'F-1' is not an action"),
    ('["F0."]', "'F0.' is not an action"),
    ('["F٣"]', "is not an action"),
    ('["F12345678"]', "is not an action"),
    ('[["F0", 3]]', "stage 0, position 1: 3 is not an action"),
    ('[["F0", null]]', "stage 0, position 1: None is not an action"),
])
def test_bad_json_is_refused_by_file_stage_and_position(tmp_path, text, message):
    path = write(tmp_path, "bad.json", text)
    with pytest.raises(ScheduleError, match=message) as refused:
        load(path, 2, 2)
    assert str(refused.value).startswith(str(path))


@pytest.mark.parametrize("text, message", [
    ("def schedule(p, m)\n    pass", "bad.py, line 1: SyntaxError: "),
    ("x = 1\nimport no_such_module", "bad.py, line 2: ModuleNotFoundError: .*no_such_module"),
    ("import sys\nsys.exit(3)", "bad.py, line 2: SystemExit: 3"),
    ("", r"no function schedule\(stages, micro_batches\), nor one called bad; it has no function"),
    ("def shedule(p, m): pass", "it has shedule"),
    ("schedule = ['F0 B0']", r"no function schedule"),
    ("def schedule(p): pass", r"schedule should take \(stages, micro_batches\), not \(p\)"),
    ("def schedule(p, m, v, w): pass", r"not \(p, m, v, w\)"),
    ("def schedule(p, m):\n    return 1 / 0", "bad.py, line 2: ZeroDivisionError: division"),
    ("from pipeline_schedules import gpipe\ndef schedule(p, m):\n    return gpipe(0, m)",
     "bad.py, line 3: ScheduleError: stages: 0 should be"),
    ("def schedule(p, m): pass", r"schedule\(2, 3\): a schedule is a list .* not a NoneType"),
    ("def schedule(p, m): return ['F0 B0', None]", r"schedule\(2, 3\): stage 1: write its actions"),
    ("def schedule(p, m): return ['F0 B0', 'F0 0B']", "stage 1, position 1: '0B' is not an action"),
    ("from pipeline_schedules import Action\n"
     "def schedule(p, m): return [[Action('F', '0')]]",
     "stage 0, position 0: micro_batch is an integer, not '0'"),
    ("from pipeline_schedules import Action\n"
     "def schedule(p, m): return [[Action('F', 0, True)]]",
     "stage 0, position 0: chunk is an integer, not True"),
    ("from pipeline_schedules import Action\n"
     "def schedule(p, m): return [[Action('G', 0)]]",
     "stage 0, position 0: an action's kind is F, B, or W, not 'G'"),
])
def test_a_bad_python_file_is_refused_by_file_and_line_or_stage(tmp_path, text, message):
    path = write(tmp_path, "bad.py", text)
    with pytest.raises(ScheduleError, match=message) as refused:
        load(path, 2, 3)
    assert str(refused.value).startswith(str(path))


def test_a_function_without_chunks_is_not_called_for_several(tmp_path):
    with pytest.raises(ScheduleError, match=r"should take \(stages, micro_batches, chunks\), not "):
        load(write(tmp_path, "mine.py", PLAIN), 2, 2, 2)
