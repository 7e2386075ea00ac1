"""`--flag` in a line of text must not be broken after its hyphens, where browsers break by rule."""

import re

INLINE = re.compile(r"(?<!</span>)<code>([^<]*)</code>")  # a block's code follows an empty span
FLAG = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")
WHOLE = r'<span class="flag">\g<0></span>'


def kept_whole(page: str) -> str:
    """The page's HTML with a span of the class `flag` around every flag in inline code."""
    return INLINE.sub(lambda code: f"<code>{FLAG.sub(WHOLE, code[1])}</code>", page)
