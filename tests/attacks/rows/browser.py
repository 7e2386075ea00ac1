"""Code that a reader of a page, a table, or a terminal might run. Its pieces carry `pwned`."""

from __future__ import annotations

from tests.attacks.attack import Notebook, attack
from tests.attacks.course import RIGHT_DOUBLE, RIGHT_TRIPLE

HTML = r'''
from IPython.display import HTML, Javascript, SVG, Markdown, Latex, IFrame, display
def bundle(kind, text):
    display({kind: text}, raw=True)
display(HTML("<script>pwned()</script><img src=x onerror='pwned()'>"))
display(HTML("<a href='javascript:pwned()'>x</a><iframe src='//pwned'></iframe>"))
display(HTML("<a href='java\tscript:pwned()'>x</a><a href='&#106;avascript:pwned()'>y</a>"))
display(HTML("<style>@import url(//pwned); body{background:url(//pwned)}</style>"))
display(HTML("<div style='position:fixed;inset:0;background:url(//pwned)'>Score: 5.0 / 5.0</div>"))
display(HTML("<meta http-equiv=refresh content='0;url=//pwned'><base href='//pwned'>"))
display(HTML("<form action='//pwned'><input><button formaction='//pwned'>go</button></form>"))
display(HTML("<object data='//pwned'></object><embed src='//pwned'>"))
display(HTML("<link rel=stylesheet href='//pwned'>"))
display(HTML("<math><mtext><style><img src=x onerror=pwned()></style></mtext></math>"))
display(HTML("<svg><a xlink:href='javascript:pwned()'><text>x</text></a></svg>"))
display(HTML("<svg><set onbegin=pwned() /></svg>"))
display(HTML("<noscript><p title=\"</noscript><img src=x onerror=pwned()>\"></noscript>"))
display(Javascript("pwned()"))
bundle("image/svg+xml", "<svg xmlns='http://www.w3.org/2000/svg' onload='pwned()'><script>pwned()"
       "</script><image href='//pwned'/></svg>")
bundle("text/markdown", "[x](javascript:pwned()) <img src=x onerror=pwned()> ![x](//pwned/x.png)")
bundle("text/latex", "$\\href{javascript:pwned()}{x}$ </div><script>pwned()</script>")
bundle("image/png", "x' onerror='pwned()")
bundle("image/jpeg", "\"><script>pwned()</script>")
bundle("application/vnd.jupyter.widget-view+json",
       {"model_id": "</script><script>pwned()</script>"})
bundle("text/vnd.mermaid", "graph TD; A-->B</pre><script>pwned()</script>")
display({"image/png": "AAAA"}, raw=True, metadata={"image/png": {
    "width": "1\" onload=\"pwned()", "alt": "\"><script>pwned()</script>"}})
print("</pre><script>pwned()</script>\x1b]8;;javascript:pwned()\x07link\x1b]8;;\x07")
print("\x1b[31m<script>pwned()</script>\x1b[0m")
'''

RAISES = r'''
class Evil(Exception):
    pass
Evil.__name__ = "</pre><script>pwned()</script>"
def double(x):
    raise Evil("<script>pwned()</script><img src=x onerror=pwned()>")
def triple(x):
    return "<script>pwned()</script>"
'''

COLORS = r'''
def triple(x):
    raise ValueError("\x1b[2J\x1b]0;pwned\x07\x9b31m\u202e right \r\n\x08\x08")
class Escape(Exception):
    pass
Escape.__name__ = "\x1b]52;c;cHduZWQ=\x07"
def double(x):
    return "\x1b[2J\x1b[1;1HScore: 5.0"
import os
os.write(2, b"\x1b[2Jpwned\x07")
print("\x1b]0;pwned\x07")
'''

DIES_LOUDLY = r'''
import os, sys
os.write(2, b"\x1b[2J\x1b]0;pwned\x07 [bold]reason[/bold] \n=cmd()\n")
sys.stderr.write("\x1b]0;pwned\x07")
os._exit(27)
'''


def markdown(notebook: Notebook) -> None:
    """In cells of one's own, and instead of the lab's text."""
    text = "<script>pwned()</script> [x](javascript:pwned()) <img src=x onerror=pwned()>"
    notebook["cells"][0]["source"] = text
    notebook["cells"].append({"cell_type": "markdown", "metadata": {}, "source": text, "id": "zz"})
    notebook["cells"].append({"cell_type": "raw", "source": text, "id": "yy",
                              "metadata": {"raw_mimetype": "text/html"}})
    notebook["metadata"].update(title="</title><script>pwned()</script>",
                                widgets={"application/vnd.jupyter.widget-state+json": {
                                    "state": {"</script><script>pwned()</script>": {}}}},
                                language_info={"name": "</script><script>pwned()",
                                               "pygments_lexer": "<script>pwned()"})


ATTACKS = [
    attack("33", "html", "Scripts, styles, frames and pictures in outputs", "script",
           double=HTML + RIGHT_DOUBLE, triple=RIGHT_TRIPLE, score=5.0, small=True),
    attack("33", "raises-html", "Markup in the name and text of an exception", double=RAISES,
           triple="pass", may_end=True),
    attack("33", "markdown", "Markup in cells of one's own and in metadata",
           change=markdown, double=RIGHT_DOUBLE, triple=RIGHT_TRIPLE, score=5.0),
    attack("33", "source-html", "Markup in the source of an answer",
           double=RIGHT_DOUBLE + "\n# </pre></div><script>pwned()</script>",
           triple=RIGHT_TRIPLE + "\n'''<img src=x onerror=pwned()>'''", score=5.0),
    attack("g1", "escapes", "Terminal escapes in values, exceptions and outputs",
           double=COLORS, triple="pass"),
    attack("g2", "dies-loudly", "Terminal escapes, markup and formulas in the last words",
           score=None, reason="double", double=DIES_LOUDLY),
]
