"""Megatron-LM's command line: the flags, and every check between them.

    table.py           every flag, by topic; Config is the whole command line
    flag.py            how a flag is declared, and what depends on it
    checks.py          checks between flags, and what follows from them
    stages.py          the layers of every stage
    virtual_device.py  the modeled GPU and network
    parse.py           from words to a checked Config
    unknown.py         words that are no flags of ours
    upstream.py        the names of Megatron-LM's flags
    foreign.py         what each of those means here
"""

from minimegatron.arguments.parse import parse_arguments
from minimegatron.arguments.table import Config

__all__ = ["Config", "parse_arguments"]
