"""Several drawings of one process, one at a time, with a button for each."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence

from pipeline_schedules import Drawing


class Flipbook:
    """Drawings that a notebook shows one at a time.

    The buttons are radio inputs, so the arrow keys move between them, and CSS alone hides the other
    drawings: a page that removes both shows all drawings, one below the other.
    """

    def __init__(self, drawings: Sequence[Drawing], label: str = "step") -> None:
        """Args:
            drawings: in order.
            label: what the numbers on the buttons count.
        """
        self.drawings, self.label = tuple(drawings), label

    def __repr__(self) -> str:
        return "\n".join(f"{self.label} {number}: {drawing.alt}"
                         for number, drawing in enumerate(self.drawings))

    def _repr_html_(self) -> str:
        name = "flip" + hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        numbers = range(len(self.drawings))
        shown = ",".join(f"#{name}-{at}:checked~.{name}-{at}" for at in numbers)
        buttons = "".join(
            f'<input type="radio" name="{name}" id="{name}-{at}"{" checked" if at == 0 else ""}>'
            f'<label for="{name}-{at}" style="margin-right:1em">{html.escape(self.label)} {at}'
            "</label>" for at in numbers)
        frames = "".join(f'<div class="{name}-all {name}-{at}">{_image(drawing)}</div>'
                         for at, drawing in enumerate(self.drawings))
        return (f"<style>.{name}-all{{display:none}}{shown}{{display:block}}</style>"
                f'<div role="group" aria-label="{html.escape(self.label)}s">{buttons}{frames}'
                "</div>")


def _image(drawing: Drawing) -> str:
    data = base64.b64encode(drawing.svg()).decode()
    return (f'<img style="max-width:100%;background:white" alt="{html.escape(drawing.alt)}" '
            f'src="data:image/svg+xml;base64,{data}">')
