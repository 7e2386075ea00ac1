"""Blocks are found, and what cannot be meant is refused with its place."""

from __future__ import annotations

import pytest

from tests.docs.pages import Orders, PageError, Step, blocks, missing
from tests.docs.session import Places, run

CONSOLE = """
# A page

<!-- run: in=scratch; exit=3 -->
```console
$ echo one \\
    two
one two
$ exit 3
```

Text.

    make test

1. In a list:

       make lab

```python
print("no command")
```
"""


def test_consoles_fences_and_indented_blocks_are_found():
    console, indented, listed = blocks(CONSOLE, "page.md")
    assert console.where == "page.md:5"
    assert console.orders == Orders(place="scratch", code=3)
    assert console.steps == (Step("echo one \\\n    two", ("one two",)), Step("exit 3"))
    assert [indented.steps, listed.steps] == [(Step("make test"),), (Step("make lab"),)]
    assert indented.orders.run


@pytest.mark.parametrize(("comment", "excuse", "elsewhere"), [
    ("not run: needs a site's Slurm", "needs a site's Slurm", ""),
    ("run elsewhere: tests/ports.py", "", "tests/ports.py")])
def test_a_comment_excuses_the_block_below_it(comment, excuse, elsewhere):
    first, second = blocks(f"<!-- {comment} -->\n```bash\nls\n```\n\n```bash\nls\n```\n", "page.md")
    assert (first.orders.excuse, first.orders.elsewhere) == (excuse, elsewhere)
    assert not first.orders.run and second.orders.run


@pytest.mark.parametrize(("text", "said"), [
    ("```\nls\n```", "page.md:1: a fence of 'no language'"),
    ("```shell\nls\n```", "a fence of 'shell'; say one of console, bash"),
    ("```console\nls\n```", "a console begins with a command, '$ ...', not with 'ls'"),
    ("```console\n```", "a console without a command"),
    ("<!-- run: in=nowhere -->\n\n    ls", "page.md:1: 'in=nowhere' is none of in=workspace|"),
    ("<!-- run: exit=one -->\n\n    ls", "'exit=one' is none of"),
    ("<!-- run: until= -->\n\n    ls", "'until=' is none of"),
    ("<!-- run: slowly -->\n\n    ls", "'slowly' is none of"),
    ("<!-- run elsewhere: tests/none.py -->\n\n    ls", "there is no tests/none.py"),
    ("<!-- not run: no reason -->\n\nText.", "stands before no block"),
    ("Text.\n\n<!-- not run: no reason -->\n", "stands before no block"),
    ("<!-- not run: no command -->\n```text\nls\n```", "before a block that is no command"),
])
def test_what_cannot_be_meant_is_refused(text, said):
    with pytest.raises(PageError) as error:
        blocks(text, "page.md")
    assert said in str(error.value)


@pytest.mark.parametrize(("shown", "printed", "line"), [
    (("in 0.3 s", "slurmnode...  idle"), "up, in 12.25 s\nslurmnode2     idle\n", None),
    (("one", "two"), "two\none\n", "two"),
    (("3 students",), "three students\n", "3 students"),
    (("a+b (c)",), "aab c", "a+b (c)"),
])
def test_output_is_compared_in_its_shape(shown, printed, line):
    assert missing(shown, printed) == line


def followed(tmp_path, text):
    return run(blocks(text, "page.md"), Places(tmp_path, tmp_path, tmp_path, tmp_path / "new"), {},
               tmp_path / "steps", 20)


def test_a_page_is_one_shell(tmp_path):
    assert followed(tmp_path, "```bash\nexport A=1\ncd /\n```\n\nText.\n\n    test $A = 1\n\n"
                              f"```console\n$ pwd\n{tmp_path}\n```\n") == []


@pytest.mark.parametrize(("text", "said"), [
    ("    false\n    touch never", "page.md:1: false\ntouch never\nexit code 1"),
    ("```console\n$ echo 1 file\n1 fold\n```", "The page shows\n  1 fold\nbut it printed\n1 file"),
    ("<!-- run: exit=2 -->\n\n    exit 3", "exit code 1"),
    pytest.param("<!-- run: until=ready -->\n\n    echo steady", "exit code 1\nsteady",
                 marks=pytest.mark.slow),
])
def test_what_goes_wrong_is_said_with_its_place(tmp_path, text, said):
    (wrong,) = followed(tmp_path, text)
    assert wrong.startswith("page.md:") and said in wrong
    assert not (tmp_path / "never").exists()


def test_a_program_that_does_not_end_is_stopped(tmp_path):
    code = "import time; print('ready', flush=True); time.sleep(60)"
    text = f'<!-- run: until=ready -->\n\n    python3 -c "{code}"\n'
    assert run(blocks(text, "page.md"), Places(tmp_path, tmp_path, tmp_path, tmp_path),
               {"PATH": "/usr/bin:/bin"}, tmp_path / "steps", 20) == []
