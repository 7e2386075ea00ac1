"""Math in pages: MathJax, whose configuration and addresses are named by the pages' policy.

nbconvert's template configures MathJax with a `text/x-mathjax-config` block, which MathJax
evaluates wherever it finds one in a page. Here the configuration is an ordinary inline script that
the policy knows by its hash. MathJax's extension Safe removes links, classes, ids, and styles
from a student's formulas.
"""

from __future__ import annotations

import base64
import hashlib
import json

FOLDER = "https://cdnjs.cloudflare.com/ajax/libs/mathjax/2.7.7/"
ADDRESS = FOLDER + "MathJax.js?config=TeX-AMS_CHTML-full,Safe"
NOT_IN_FORMULAS = dict.fromkeys(("URLs", "classes", "cssIDs", "styles"), "none")
CONFIGURATION = {
    "TeX": {"equationNumbers": {"autoNumber": "AMS", "useLabelIds": True}},
    "tex2jax": {"inlineMath": [["$", "$"], ["\\(", "\\)"]],
                "displayMath": [["$$", "$$"], ["\\[", "\\]"]],
                "processEscapes": True, "processEnvironments": True},
    "displayAlign": "center",
    "messageStyle": "none",
    "showMathMenu": False,
    "CommonHTML": {"linebreaks": {"automatic": True}},
    "Safe": {"allow": NOT_IN_FORMULAS},
}
SCRIPT = f"window.MathJax = {json.dumps(CONFIGURATION)};"
HASH = f"'sha256-{base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()}'"
# Takes the place of nbconvert's template of that name.
TEMPLATE = (f'{{%- macro mathjax(url="") -%}}{{% raw %}}<script>{SCRIPT}</script>{{% endraw %}}'
            f'<script src="{ADDRESS}"></script>{{%- endmacro %}}')
TEMPLATES = {"mathjax.html.j2": TEMPLATE}
