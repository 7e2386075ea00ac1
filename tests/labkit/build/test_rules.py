"""Errors of `lab build`: each names the file, the line, the cell, the name, and the remedy."""

import ast

import pytest

from labcore.errors import LabError
from labkit.build import masks, read
from labkit.build.cli import build
from labkit.masks import PIPELINE_LIBRARIES
from tests.labkit.build.conftest import SAMPLE, line_of

MUTANTS = '# %% [raw] tags=["mutant"] answer="global-batch" hint="nobody adds"'
BATCH = '"grade_id": "global-batch", "locked": false'
CHECKED = '"grade_id": "global-batch-check", "locked": true, "points": 2'
SCRIPT = 'job = check.script("code/mine.sh", only=["--nproc_per_node", "--micro-batch-size"])'
SUMS = "found = check.call(sums, [2, 3, 4])"
COUNTER = "    counter = Counter()"
END = 'check.compare("milliseconds", milliseconds, 50)'
BODY = "    return math.prod((micro_batch, ranks))"
EXPLORE = "# !echo the queue is empty"
EXPLORED = '# %% tags=["explore"]'
IMPORTED = "from labkit import check"
HEADING = "# ## Exercise 2: a script"
SCRIPT_MUTANT = SAMPLE.partition('hint="the exercise uses 2 x 2"\n')[2].partition("\n\n")[0]

# What is replaced, by what, what must be said, and (in the changed file) on which line.
REFUSED = [
    # roles
    (' tags=["explore"]\n# !echo', "\n# !echo", "this code cell's roles: none; give it exactly one",
     "# !echo"),
    ('tags=["setup"]', 'tags=["set-up"]', "roles: none (nearest: setup)", "import math"),
    ('tags=["setup"]', 'tags=["setup", "explore"]', "roles: setup and explore", "import math"),
    ('tags=["setup"]', "tags=[setup]", "its marks cannot be read: tags=[setup]", "import math"),
    ('[raw] tags=["mutant"]', "[raw]", "this raw cell's roles: none; give it exactly one of: "
     "mutant", None),
    ("# %% [markdown]\n# ## Exercise 2", '# %% [markdown] tags=["setup"]\n# ## Exercise 2',
     "a Markdown cell is either", HEADING),
    # the short setting
    (f"{EXPLORED}\n{EXPLORE}", f'{EXPLORED} short={{"empty": "short"}}\n{EXPLORE}', None, None),
    (EXPLORED, f'{EXPLORED} short={{"full": "x"}}', "'full', which occurs 0 times", None),
    (EXPLORED, f'{EXPLORED} short={{"e": "E"}}', "changes 'e', which occurs 5 times", None),
    (EXPLORED, f'{EXPLORED} short={{"empty": 1}}', '{"text in the cell": "replacement"}', None),
    (EXPLORED, f'{EXPLORED} short="empty"', '{"text in the cell": "replacement"}', None),
    ('tags=["driver"]', 'tags=["driver"] short={"Counter": "C"}',
     "only explore and setup cells have a short setting", None),
    # names: setup and answers
    ("import math", "from math import *", "import * hides which names it binds", "from math"),
    ("import math", "import math\nsize = sizes", "it uses sizes, which nothing defines", "size ="),
    (BODY, "    return mat.prod((micro_batch, ranks))",
     "it uses mat, which nothing defines (nearest: math)", "mat.prod"),
    (EXPLORE, "seen = 3", None, None),
    (BODY, "    return check.value", "it uses check, which the check-setup cell in line",
     "return check.value"),
    (BODY, "    return milliseconds", "it uses milliseconds, which the answer cell in line",
     "return milliseconds"),
    (BODY, "    return micro_batch *", "not Python: invalid syntax", "return micro_batch *"),
    ("milliseconds = 40", "global_batch = 40", "it binds global_batch, which the answer cell in "
     "line", "global_batch = 40"),
    (EXPLORE, "def global_batch(): pass", "it binds global_batch, which the explore cell in line",
     "def global_batch(micro_batch, ranks)"),
    (END, "del global_batch", "it binds global_batch, which the answer cell", "del global_batch"),
    (END, "try: pass\nexcept OSError as sums: pass", "it binds sums", "except OSError"),
    (END, "match {}:\n    case {**sums}: pass", "it binds sums", "case {**sums}"),
    (END, "class A:\n    global sums\n    sums = 3", "it binds sums", "    sums = 3"),
    (END, "[sums := 3 for x in ()]", "it binds sums", "[sums := 3"),
    (END, "f = lambda sums: [global_batch for global_batch in sums]", None, None),
    (END, "global_batch = 3", "it binds global_batch, which the answer cell", "global_batch = 3"),
    (END, "def f():\n    global Counter\n    Counter = 1", "it binds Counter", "Counter = 1"),
    (END, "for sums in range(3): pass", "it binds sums, which the driver cell", "for sums"),
    (END, "math = 3", "it binds math, which the setup cell", "math = 3"),
    (END, "import math", None, None),
    (END, "%%writefile code/mine.sh\nsrun", "code/mine.sh is the student's",
     "%%writefile code/mine.sh\nsrun"),
    (END, "x = = 1", "not Python", "x = ="),
    (END, "await f()", None, None),
    # files
    ("# %%writefile code/mine.sh", "# %%writefile /code/mine.sh", "give one path, literal and "
     "relative", "# %%writefile /code"),
    ("# %%writefile code/mine.sh", "# %%writefile ../mine.sh", "give one path", "# %%writefile .."),
    ("# %%writefile code/mine.sh", "# %%writefile $X/mine.sh", "give one path", "# %%writefile $X"),
    ("# %%writefile code/mine.sh", "# %%writefile -a code/mine.sh", "give one path",
     "# %%writefile -a"),
    ("# %%writefile code/mine.sh", "# %%writefile code/mine.c", "only files that end with .sh "
     "and .py can be answers", "# %%writefile code/mine.c"),
    # checks
    (SCRIPT, "job = check.script('code/my.sh')",
     "no answer above writes code/my.sh (nearest: code/mine.sh)", "code/my.sh"),
    (SCRIPT, "name = 'code/mine.sh'\njob = check.script(name)", "write the path out",
     "script(name"),
    (SCRIPT, f"{SCRIPT}\ncost = check.figures(job, 'virtual:v100')", None, None),
    (SUMS, f"{SUMS}\ncheck.figures(sums, 'virtual:v100')", "sums is the student's", "figures(sums"),
    (SCRIPT, f"{SCRIPT}\ncheck.figures(job)", "check.figures: give either a device or cluster=",
     "figures(job"),
    (SCRIPT, f"{SCRIPT}\ncheck.figures(job, 'virtual:v100', cluster='a10:2')",
     "check.figures: give either a device or cluster=", "figures(job"),
    (SCRIPT, f"{SCRIPT}\ncheck.figures(job, cluster='a10:2')", None, None),
    (SUMS, "found = sums([1])", "sums is the student's: it may only be the",
     "found = sums"),
    (SUMS, "found = check.call(lambda: sums([1]))", "sums is the student's", "lambda: sums"),
    (SUMS, "found = check.call([sums][0], [1])", "sums is the student's", "[sums]"),
    (SUMS, "found = check.call(sums.f, [1])", "sums is the student's", "sums.f"),
    (SUMS, "found = check.call(*sums)", "sums is the student's", "*sums"),
    (SUMS, "found = check.call(f=sums)", None, None),
    (SUMS, f"{SUMS}\ncheck.call(sums, sums)", "sums is the student's", "check.call(sums, sums)"),
    (SUMS, f"{SUMS}\ncheck.that(sums, 'x')", "sums is the student's", "that(sums"),
    (SUMS, f"{SUMS}\ncheck.raises(sums, ValueError, sums)", "sums is the student's", "raises(sums"),
    (SUMS, "found = check.call(**{'f': sums})", "** in its arguments: write them out", "**{"),
    (SUMS, f"{SUMS}\nc = check\nc.call(sums)", "sums is the student's", "c.call(sums"),
    (SUMS, f"{SUMS}\nmatch sums:\n    case _: pass", "sums is the student's", "match sums"),
    (SUMS, f"{SUMS}\nif (other := sums): pass", "sums is the student's", "other := sums"),
    (SUMS, "other = sums\nfound = check.call(other)", "sums is the student's", "other = sums"),
    (SUMS, "found = [1]", "it does not test the student's code", "\nfound = [1]"),
    (SUMS, "found = check.calls(sums)", "labkit.check has no calls (nearest: call)", "calls(sums)"),
    (SUMS, "found = check.value(sums)", "check.value: missing a required argument: 'expected'",
     "value(sums)"),
    (SUMS, "found = check.function(sums, [], sum, wrong=1)", "unexpected keyword argument 'wrong'",
     "wrong=1"),
    (SUMS, f"{SUMS}\nopen('x')", "open reaches out of the check", "open('x')"),
    (SUMS, f"{SUMS}\nf = lambda: globals()", "globals reaches out of the check", "globals()"),
    (SUMS, f"{SUMS}\nfound.__class__", ".__class__ reaches out of the check", "found.__class__"),
    (SUMS, f"{SUMS}\nimport time", "time: no clock", "import time"),
    (SUMS, f"{SUMS}\nmath.pi", "it uses math, which the setup cell in line", "math.pi"),
    (SUMS, f"{SUMS}\njob", "it uses job, which the check cell in line", "\njob\n"),
    (SUMS, f"{SUMS}\n!ls", "magics and ! commands belong in explore cells", "\n!ls"),
    (SUMS, f"check = 3\n{SUMS}", "it binds check, which the check-setup cell", "check = 3"),
    ("from labkit import check", "check = 3",
     "check is nothing here: write `from labkit import check`", "check.function("),
    ("from labkit import check", "from labkit import check\nright = global_batch(1, 2)",
     "it uses global_batch, which the answer cell in line", "right = global"),
    ("from labkit import check", "from labkit import check\nimport os\nx = os.times()",
     "os.times: no clock", "x = os"),
    # masks
    (IMPORTED, f'{IMPORTED}\ncheck.mask("minimegatron", "layout_estimator", "statistics.sqrt")',
     None, None),
    (IMPORTED, f'{IMPORTED}\ncheck.mask("minimegatron.formula")', "no such module or "
     "name (nearest: minimegatron.formulas)", "check.mask("),
    (IMPORTED, f'{IMPORTED}\ncheck.mask("labkit.check.wire")',
     "every sandbox needs labkit.check.wire", "check.mask("),
    (IMPORTED, f'{IMPORTED}\ncheck.mask("labkit")', "every sandbox needs labkit", "check.mask("),
    (IMPORTED, f'{IMPORTED}\ncheck.mask("statistics")\ncheck.mask("layout_estimator.costs")',
     "check.mask is called once in a lab", 'check.mask("layout_estimator.costs")'),
    (IMPORTED, f"{IMPORTED}\nname = 'minimegatron'\ncheck.mask(name)", "write the names out",
     "check.mask(name"),
    (IMPORTED, f"{IMPORTED}\nnames = ['minimegatron']\ncheck.mask(*names)", "write the names out",
     "check.mask(*names"),
    (SUMS, f'{SUMS}\ncheck.mask("minimegatron")', "check.mask belongs in a check-setup cell",
     "check.mask("),
    # drivers
    (COUNTER, "    import time\n    counter = Counter()", "time: no clock", "import time"),
    (COUNTER, "    from time import perf_counter as p\n    counter = Counter()",
     "time.perf_counter: no clock", "from time"),
    ("def sums(numbers)", "import torch\ndef sums(numbers, x=torch.cuda.max_memory_allocated)",
     "torch.cuda.max_memory_allocated: no clock", "def sums"),
    (COUNTER, "    counter = math", "it uses none of the student's names", "def sums"),
    ("def sums(numbers)", "made = 1\ndef sums(numbers)", "a driver cell may contain only functions "
     "(def) and imports", "made = 1"),
    (COUNTER, "    counter = Counter(check)", "it uses check, which the check-setup cell",
     "Counter(check)"),
    # nbgrader's metadata
    (CHECKED, CHECKED.replace('"points": 2', '"points": 0'), "points 0: a check needs more than 0",
     "check.function("),
    (CHECKED, CHECKED.replace(', "points": 2', ""), "nbgrader reports: nbgrader cell "
     "'global-batch-check' does not have points", "check.function("),
    (CHECKED, CHECKED.replace("true, ", "false, "), '"locked": false: it must be false for '
     "an answer and true for a check", "check.function("),
    (CHECKED, CHECKED.replace("global-batch-check", "script"), "grade_id script is taken",
     None),
    (BATCH, BATCH.replace("global-batch", "Global_Batch"), "grade_id 'Global_Batch': "
     "lowercase letters, digits, and single -, for example global-batch", "def global_batch"),
    ('"schema_version": 3, ', "", "nbgrader reports", "def global_batch"),
    # markers
    ("    ### END SOLUTION", "", "### BEGIN SOLUTION has no ### END SOLUTION", "def global_batch"),
    ("    ### BEGIN SOLUTION", "", "### END SOLUTION has no matching marker",
     "    ### END SOLUTION"),
    ("    ### BEGIN SOLUTION", "    # BEGIN SOLUTION", "write ### BEGIN SOLUTION or ### END "
     "SOLUTION alone", "    # BEGIN"),
    (SCRIPT, f"{SCRIPT}\n### BEGIN SOLUTION\n### END SOLUTION", "SOLUTION markers belong in "
     "answer cells", None),
    ("### BEGIN HIDDEN TESTS", "", "### END HIDDEN TESTS has no matching marker",
     "### END HIDDEN"),
    ("### BEGIN SOLUTION\nmilliseconds = 40\n### END SOLUTION", "milliseconds = 40",
     "put what the student writes between", "milliseconds = 40"),
    # mutants and hints
    (f"{MUTANTS}\n# def global_batch(micro_batch, ranks):\n#     return micro_batch + ranks\n", "",
     "1 mutants; give it at least 2", "def global_batch"),
    (MUTANTS, MUTANTS.replace("global-batch", "globl-batch"),
     "answer='globl-batch' is not an answer in this lab (nearest: global-batch)", None),
    (MUTANTS, MUTANTS.replace("global-batch", "guess"), "no check tests this answer", None),
    (MUTANTS, MUTANTS.replace("nobody adds", "nobody add "), "no hint in check global-batch-check "
     "contains 'nobody add '", None),
    (MUTANTS, MUTANTS.replace(' hint="nobody adds"', ""), "it has no hint", None),
    (MUTANTS, MUTANTS.replace("nobody adds", "one rank's share"), "no mutant triggers the hint "
     "'The ranks work side by side: nobody adds them to a batch.'", "The ranks work side"),
    ("#     return micro_batch + ranks", "#     return micro_batch", "it is the same as mutant",
     None),
    ("# def global_batch(micro_batch, ranks):\n#     return micro_batch + ranks",
     "# def batch(a, b): return a", "it does not define global_batch", None),
    ("#     return micro_batch + ranks", "#     return sums", "it uses sums", "return sums"),
    ("#     return micro_batch + ranks", "#     return +", "not Python", "return +"),
    (SCRIPT_MUTANT, "# %%writefile code/x.sh\n# srun",
     "it writes code/x.sh, but the answer writes code/mine.sh", "# %%writefile code/x.sh"),
    (SCRIPT_MUTANT, "# -srun echo\n# +srun", "'srun echo' occurs 0 times in the answer, "
     "not once", "# -srun echo"),
    # prose
    ("# # A sample lab", "# A sample lab", "begins with its title", "A sample lab"),
    (HEADING, "# # Exercise 2", "a second title, 'Exercise 2'", "# # Exercise 2"),
    (HEADING, "# #### Exercise 2", "#### Exercise 2 follows ##: use ###", "# #### Ex"),
    (HEADING, "# ## Predict", "heading 'Predict' is also in line", None),
    (HEADING, f"{HEADING}\n#\n# ![](../images/sample.svg)", "has no alternative text", "# ![]"),
    (HEADING, f"{HEADING}\n#\n# <img src='../images/sample.svg'>", "has no alternative", "# <img"),
    (HEADING, f"{HEADING}\n#\n# ![x](../images/simple.svg)",
     "no such file: simple.svg (nearest: sample.svg)", "# ![x]"),
    (HEADING, f"{HEADING}\n#\n# ![x](https://a.org/x.svg)", "images come from images/", "# ![x]"),
    (HEADING, f"{HEADING}\n#\n# [x](91_sample.ipynb)",
     "no such file: 91_sample.py (nearest: 90_sample.py)", "# [x]"),
    (HEADING, f"{HEADING}\n#\n# [x](../docs/cluster.md)", "students only have notebooks/",
     "# [x]"),
    (HEADING, f"{HEADING}\n#\n# [x](/proxy/6006)", "breaks on a server with a base path", "# [x]"),
    (HEADING, f"{HEADING}\n#\n# [x](#Predcit)", "no such heading (nearest: Predict)", "# [x]"),
    (HEADING, f"{HEADING}\n#\n# [x](#Predict) [y](https://a.org)", None, None),
    ("# %% [markdown]\n# # A sample lab", "x = 1\n\n# %% [markdown]\n# # A sample lab",
     "every cell, including the first, must begin with such a line", None),
]


@pytest.mark.parametrize(("old", "new", "said", "piece"), REFUSED,
                         ids=[f"{number}" for number in range(len(REFUSED))])
def test_what_is_refused(author, old, new, said, piece):
    path = author((old, new))
    if said is None:
        read(path)
        return
    with pytest.raises(LabError) as error:
        read(path)
    lines = [line for line in str(error.value).split("\n") if said in line]
    assert lines, str(error.value)
    number = int(lines[0].removeprefix(f"{path}:").split(":")[0])
    if piece is not None:  # errors about a cell as a whole name the line of its marker
        assert number in (line_of(path, piece.lstrip("\n")), line_of(path, piece.lstrip("\n")) - 1)


def test_all_errors_are_listed_at_once_and_nothing_is_written(author, root):
    author((BODY, "    return mat"), (SUMS, "found = sums([1])"), (HEADING, "# # Two"))
    with pytest.raises(LabError) as error:
        build(root)
    first, *lines = str(error.value).split("\n")
    assert "nothing was written" in first
    for said in ("it uses mat", "sums is the student's", "a second title"):
        assert sum(said in line for line in lines) == 1
    assert sorted(path.name for path in root.iterdir()) == ["images", "solutions"]


@pytest.mark.parametrize("content", [b"\xff\xfe", b"", b"x = 1\n", b"# %%\n\"\"\"\n# %%\n",
                                     b"# %% tags=[\n", b"# %% [markdown]\n", b"# %%\n\x00"])
def test_files_that_are_no_labs(root, content):
    path = root / "solutions" / "90_sample.py"
    path.write_bytes(content)
    with pytest.raises(LabError, match="90_sample"):
        read(path)


def test_a_lab_that_is_not_there(root):
    with pytest.raises(LabError, match=r"nowhere\.py"):
        read(root / "nowhere.py")


def test_the_list_of_libraries_is_written_out():
    tree = ast.parse('check.mask("minimegatron", *check.PIPELINE_LIBRARIES)\ncheck.mask(*names)')
    assert masks.masked(tree) == ["minimegatron", *PIPELINE_LIBRARIES]


def test_two_checks_that_the_notebook_would_call_by_one_name(author):
    path = author((CHECKED, CHECKED.replace("global-batch-check", "late")),
                  ('"grade_id": "script-check"', '"grade_id": "late-check"'))
    with pytest.raises(LabError, match=r'check\("late"\) would also run late, in line \d+'):
        read(path)
