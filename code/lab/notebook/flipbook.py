"""Show several drawings of one process, one at a time, with a button for each."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from labcore.html import render
from pipeline_schedules import Drawing


class Flipbook:
    """Drawings that a notebook shows one at a time.

    The buttons are radio inputs, so the arrow keys move between them, and CSS alone hides the other
    drawings: a page that removes both shows all drawings, one below the other.
    """

    def __init__(self, drawings: Sequence[Drawing], label: str = "step") -> None:
        """Args:
            drawings: the drawings, in order.
            label: what the numbers on the buttons count.
        """
        self.drawings, self.label = tuple(drawings), label

    def __repr__(self) -> str:
        return "\n".join(f"{self.label} {number}: {drawing.alt}"
                         for number, drawing in enumerate(self.drawings))

    def _repr_html_(self) -> str:
        name = "flip" + hashlib.sha256(repr(self).encode()).hexdigest()[:8]
        frames = [{"alt": drawing.alt, "data": base64.b64encode(drawing.svg()).decode()}
                  for drawing in self.drawings]
        return render("lab/notebook/flipbook.html.j2", name=name, label=self.label, frames=frames)
