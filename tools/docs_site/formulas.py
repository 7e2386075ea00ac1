"""TeX formulas as MathML, which browsers draw themselves: no script, nothing to fetch."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as xml

from latex2mathml.converter import convert

# As pymdownx.arithmatex marks them.
FORMULA = re.compile(r'<(?:span|div) class="arithmatex">(.*?)</(?:span|div)>', re.DOTALL)
PARTS = {"mfrac": 2, "mroot": 2, "msub": 2, "msup": 2, "munder": 2, "mover": 2, "msubsup": 3,
         "munderover": 3}


def to_mathml(tex: str, display: str = "inline") -> str:
    """The formula's MathML. Raises ValueError, which names it, if a part is not understood."""
    try:
        made = convert(tex, display=display)
    except Exception as error:  # latex2mathml has a dozen kinds without a common base
        raise ValueError(f"formula {tex!r}: {type(error).__name__} {error}".rstrip()) from error
    for element in xml.fromstring(made).iter():
        name = element.tag.rpartition("}")[2]
        if "\\" in (element.text or ""):  # a command it does not know becomes text
            raise ValueError(f"formula {tex!r}: {element.text} is not known to latex2mathml; "
                             "nearest: write it with commands that are")
        if len(element) != PARTS.get(name, len(element)):
            raise ValueError(f"formula {tex!r}: a <{name}> takes {PARTS[name]} parts, "
                             f"not {len(element)}; nearest: put them into braces")
    return made


def replace_in(page: str) -> str:
    """A page's HTML with all its formulas converted. Raises ValueError."""
    def one(match: re.Match[str]) -> str:
        text = html.unescape(match[1]).strip()  # \( .. \) in a line, \[ .. \] on its own
        tex = text[2:-2].strip()
        if text.startswith(r"\["):
            return f'<div class="formula">{to_mathml(tex, "block")}</div>'
        return to_mathml(tex)

    return FORMULA.sub(one, page)
