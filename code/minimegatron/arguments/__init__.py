"""Megatron-LM's command line: the flags, and every check between them."""

from minimegatron.arguments.flags import Config
from minimegatron.arguments.parse import parse_arguments

__all__ = ["Config", "parse_arguments"]
