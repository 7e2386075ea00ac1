"""pipe_dream.py as a program for warm ranks: they are forked after DeepSpeed has been imported."""

import options
import pipe_dream
from lab.notebook.deepspeed_cpu import leave


def main() -> None:
    leave(options.explained(pipe_dream.main))
