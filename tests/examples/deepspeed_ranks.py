"""pipe_dream.py as a program for warm ranks, which are forked after the slow imports."""

from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel  # noqa: F401

import options
import pipe_dream
from lablib.deepspeed_cpu import leave


def main() -> None:
    leave(options.explained(pipe_dream.main))
