"""Making the grader itself work: pages, cells, and comparisons that take minutes."""

from __future__ import annotations

from tests.attacks.attack import Notebook, attack
from tests.attacks.course import RIGHT_DOUBLE, RIGHT_TRIPLE, find
from tests.grader.small_lab import pasted


def showing(html: str) -> str:
    """The right answer, and an output with that HTML, an expression."""
    return f"from IPython.display import HTML, display\ndisplay(HTML({html}))\n" + RIGHT_DOUBLE


def forty_copies(notebook: Notebook) -> None:
    for number in range(40):
        copy = pasted(find(notebook, "double"))
        copy["source"] = "%pwd\n" * 400 + RIGHT_DOUBLE + f"  # {number}"
        notebook["cells"].append(copy)


def written(text: str):
    def change(notebook: Notebook) -> None:
        find(notebook, "why")["source"] = text
    return change


EMPTY = "import numpy as np\ndef triple(x):\n    return np.empty((0, 1_000_000))"
THIN = "import numpy as np\ndef triple(x):\n    return np.empty((1_000_000, 0))"
MAGICS = "%timeit 1\n" * 20_000 + RIGHT_TRIPLE
COLORS = r"print('\x1b[1mx\x1b[31my' * 200_000)" + "\n" + RIGHT_DOUBLE
FORM_FEEDS = r"print('\x0c\x1b[999999999m\x1b[2J' * 100_000)" + "\n" + RIGHT_DOUBLE
# 50 KB that unpack to 400 megapixels.
GRAY = """import io, base64
from PIL import Image
file = io.BytesIO()
Image.new("1", (20_000, 20_000)).save(file, "PNG")
picture = base64.b64encode(file.getvalue()).decode()
"""
BOTH = {"double": RIGHT_DOUBLE, "triple": RIGHT_TRIPLE}

ATTACKS = [
    attack("t1", "unclosed", "HTML: 1.8 MB of <a", double=showing("'<a ' * 600_000"), score=3.0,
           small=True),
    attack("t2", "nested-blocks", "HTML: 360,000 nested blocks",
           double=showing("'<div>' * 360_000"), score=3.0, small=True),
    attack("t3", "nested-tags", "HTML: 20,000 nested tags", double=showing("'<b>' * 20_000"),
           score=3.0),
    attack("t4", "ampersands", "HTML: 1.8 MB of ampersands", double=showing("'&' * 1_800_000"),
           score=3.0),
    attack("t5", "markdown-bomb", "A written answer of 55,000 open environments",
           change=written("\\begin{a}" * 55_000), score=5.0, small=True, **BOTH),
    attack("t6", "markdown-lists", "A written answer of links in links in lists",
           change=written("- [a](" * 80_000), score=5.0, **BOTH),
    attack("t7", "forty-copies", "40 copies of a cell with 400 magics each", change=forty_copies,
           score=5.0, small=True, **BOTH),
    attack("t8", "many-magics", "A cell with 20,000 magics", triple=MAGICS),
    attack("t9", "empty-array", "An empty array that any shape broadcasts to", triple=EMPTY),
    attack("t10", "thin-array", "A million rows without columns", triple=THIN),
    attack("t11", "colors", "400,000 changes of color", double=COLORS, score=3.0),
    attack("t12", "form-feeds", "Escape sequences that clear screens", double=FORM_FEEDS,
           score=3.0),
    attack("t13", "wide-cells", "A table of 8,000 cells, each of 100 columns",
           double=showing("'<table><tr>' + '<td colspan=100>' * 8_000"), score=3.0),
    attack("t14", "tall-cells", "A table of 300 cells, each of 1,000 columns and 65,534 rows",
           double=showing("'<table>' + '<tr><td rowspan=65534 colspan=1000>x' * 300"), score=3.0),
    attack("t15", "stairs", "A table whose rows push each other to the right",
           double=showing("'<table>' + '<tr><td rowspan=1000>x' * 1_000"), score=3.0),
    attack("t16", "gray-picture", "A picture of 50 KB with 400 million pixels",
           double=GRAY + showing("f'<img src=\"data:image/png;base64,{picture}\">'"), score=3.0),
    attack("t17", "gray-output", "The same as an output of its own",
           double=GRAY + "from IPython.display import Image as Shown, display\n"
           "display(Shown(file.getvalue()))\n" + RIGHT_DOUBLE, score=3.0),
    attack("t18", "long-numbers", "Numbers of 4,299 and of 5,000 digits",
           double="def double(x):\n    return 10**4_298",
           triple="def triple(x):\n    return 10**5_000", small=True),
    attack("t19", "comments", "A copy of a peer's answer below 20,000 characters of comments",
           double="# a thought\n" * 2_000 + RIGHT_DOUBLE, score=3.0),
]
