"""Parts of Transformer Engine that do not depend on the framework."""

from . import recipe

__all__ = ["recipe"]
