"""The program that generates text: parse the command line, load the model, and print.

Every error becomes one message, as in main.py.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from minimegatron.arguments import Config
from minimegatron.arguments.checks import check_query_groups, derive_grid, derive_tensor_parallel
from minimegatron.arguments.data import TOKENIZERS
from minimegatron.arguments.parse import Parser, number_in
from minimegatron.checkpoint.saved_model import SavedModel, model_config
from minimegatron.context import Context
from minimegatron.data.tokenizer import Tokenizer, build_tokenizer
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.errors import UserError, emit, require
from minimegatron.failures import print_error, print_shared_error
from minimegatron.generation import Sampling, TextModel, generate
from minimegatron.initialize import initialize
from minimegatron.main import leave

TOKENIZER_FLAGS = ("tokenizer_type", "vocab_file", "merge_file", "tokenizer_model")


def main(open_model: Callable[[Path], SavedModel], argv: Sequence[str] | None = None) -> NoReturn:
    """Generate text as the command line asks, and end the process: with exit code 1 after an error.

    Args:
        open_model: returns the model in the folder of --load, or raises UserError.
        argv: the command line; None for that of the process.
    """
    try:
        flags = parse(sys.argv[1:] if argv is None else argv)
        saved = open_model(Path(flags.load))
        config = config_of(flags, saved)
        tokenizer = tokenizer_of(flags, saved)
        prompts = [(text, tokenizer.tokenize(text) or [tokenizer.eod])
                   for text in [*flags.prompts, *in_file(flags.prompt_file)]]
        for _, tokens in prompts:
            require_room(len(tokens), flags.num_tokens_to_generate, config)
    except UserError as error:  # on every rank, because all read the same
        text = f"error: {error}".replace("\n", "\nerror: ")
        print_shared_error(text, os.environ.get("RANK", "0") == "0")
        leave(1)
    try:
        run(initialize(config), flags, saved, tokenizer, prompts)
    except Exception as error:
        print_error(error, config.rank)
        leave(1)
    leave(0)


def run(ctx: Context, flags: Namespace, saved: SavedModel, tokenizer: Tokenizer,
        prompts: Sequence[tuple[str, list[int]]]) -> None:
    """Print each prompt with the text that follows it. Raises UserError."""
    if not ctx.device.has_values:
        raise UserError(f"--device {flags.device}: tensors on virtual GPUs have no values; "
                        "nearest: --device cpu")
    model = TextModel(ctx, saved, pad_vocab_size(saved.rows, 1, ctx.grid.tp.size))
    for number, (prompt, tokens) in enumerate(prompts):
        started = time.perf_counter()
        new = list(generate(model, tokens, flags.num_tokens_to_generate, tokenizer, flags.sampling))
        seconds = time.perf_counter() - started
        # Some tokens are only a part of a character, so all are decoded together.
        before, text = tokenizer.detokenize(tokens), tokenizer.detokenize([*tokens, *new])
        ctx.print_rank_0(("\n" if number else "") + prompt + text[len(before):])
        if ctx.grid.rank == 0:
            emit(f"> {len(tokens)} + {len(new)} tokens in {seconds:.2f} s", sys.stderr)


def build_parser() -> Parser:
    """Return the parser, whose flags have Megatron-LM's names."""
    parser = Parser(prog="generate.py", allow_abbrev=False,
                    description="Continue texts with a trained model. Its shape and its tokenizer "
                                "come from its checkpoint.")
    add = parser.add_argument
    add("--load", required=True, metavar="FOLDER", help="a checkpoint of pretrain_gpt.py or "
        "my_trainer.py (what --save named), or a model in Hugging Face's format")
    add("--prompts", "--prompt", nargs="+", default=[], metavar="TEXT", help="texts to continue")
    add("--prompt-file", metavar="FILE", help='JSON lines with a "text" key, as for '
        "preprocess_data.py")
    add("--num-tokens-to-generate", type=int, default=30, metavar="N",
        help="tokens after each prompt, unless its document ends before (default: 30)")
    add("--greedy", action="store_true",
        help="always the most probable token: the default without the next three flags")
    add("--temperature", type=float, metavar="T", help="divide the logits by T, and choose at "
        "random (default: 1.0 with --top_k or --top_p)")
    add("--top_k", "--top-k", type=int, metavar="K", help="choose among the K most probable tokens")
    add("--top_p", "--top-p", type=float, metavar="P", help="choose among the fewest tokens whose "
        "probabilities sum to P")
    add("--seed", type=int, default=Config.seed, help=f"random seed (default: {Config.seed})")
    add("--tensor-model-parallel-size", type=int, default=1, metavar="T",
        help="ranks that share the model; torchrun starts as many (default: 1)")
    add("--pipeline-model-parallel-size", type=int, default=1, help="must be 1")
    add("--device", default=Config.device, help="cpu, cuda, or auto: cuda if there is a GPU")
    for name in TOKENIZER_FLAGS:
        add(f"--{name.replace('_', '-')}", choices=TOKENIZERS if name.endswith("type") else None,
            help="instead of the checkpoint's, as for pretrain_gpt.py")
    return parser


def parse(argv: Sequence[str]) -> Namespace:
    """Return the flags, and `sampling`. Raises UserError."""
    flags = build_parser().parse_args(argv)
    count, stages = flags.num_tokens_to_generate, flags.pipeline_model_parallel_size
    require(bool(flags.prompts or flags.prompt_file),
            'there is nothing to continue; nearest: --prompts "import os"')
    require(count >= 1, f"--num-tokens-to-generate {count}: must be at least 1; nearest: 1")
    require(stages == 1, f"--pipeline-model-parallel-size {stages}: one token at a time, only one "
            "stage would ever be busy; nearest: --tensor-model-parallel-size "
            f"{stages} (a checkpoint with stages loads either way)")
    given = [(name, getattr(flags, name)) for name in ("temperature", "top_k", "top_p")
             if getattr(flags, name) is not None]
    for name, value in given:
        require(not flags.greedy, f"--greedy with --{name} {value}: leave one of them out")
        limit, words = (1, " and at most 1") if name == "top_p" else (math.inf, "")
        require(0 < value <= limit and value < math.inf,
                f"--{name} {value}: must be greater than 0{words}; nearest: --{name} 1")
    require(0 <= flags.seed < 2**32, f"--seed {flags.seed}: must be from 0 to {2**32 - 1}")
    flags.sampling = Sampling(seed=flags.seed) if not given else Sampling(
        flags.temperature or 1.0, flags.top_k or 0, flags.top_p or 0.0, flags.seed)
    return flags


def config_of(flags: Namespace, saved: SavedModel) -> Config:
    """Return the configuration of this rank. Raises UserError if the ranks cannot share it."""
    tp, ranks = flags.tensor_model_parallel_size, number_in(os.environ, "WORLD_SIZE", 1)
    require(tp >= 1, f"--tensor-model-parallel-size {tp}: must be at least 1; nearest: 1")
    require(tp == ranks, f"--tensor-model-parallel-size {tp} with {ranks} rank(s): all ranks share "
            f"one model; nearest: torchrun --nproc_per_node {tp}, or --tensor-model-parallel-size "
            f"{ranks}")
    config = model_config(saved.args, saved.dtype, device=flags.device, world_size=ranks,
                          rank=number_in(os.environ, "RANK", 0), tensor_model_parallel_size=tp)
    check_query_groups(config)
    return derive_tensor_parallel(derive_grid(config))


def tokenizer_of(flags: Namespace, saved: SavedModel) -> Tokenizer:
    """Return the tokenizer of the command line, or else of the model. Raises UserError."""
    given = {name: getattr(flags, name) for name in TOKENIZER_FLAGS}
    if not any(given.values()):
        given = {name: saved.args.get(name) for name in TOKENIZER_FLAGS}
    kind = given.pop("tokenizer_type") or Config.tokenizer_type
    tokenizer = build_tokenizer(kind, *given.values())
    size, rows = tokenizer.vocab_size, saved.rows
    require(saved.fewest <= size <= rows, f"the tokenizer has {size:,} tokens, but the model in "
            f"{saved.source} was trained with {saved.fewest:,} to {rows:,}: give its own with "
            "--vocab-file and --merge-file, or --tokenizer-type and --tokenizer-model")
    return tokenizer


def require_room(length: int, count: int, config: Config) -> None:
    """Raise UserError if a prompt of `length` tokens and `count` more have no positions."""
    most = config.max_position_embeddings
    require(length < most, f"a prompt has {length:,} tokens, but the model has only {most:,} "
            f"positions (--max-position-embeddings); nearest: a prompt of {most - 1:,} tokens")
    require(length + count <= most, f"--num-tokens-to-generate {count}: with the prompt's "
            f"{length:,} tokens, that is more than the {most:,} positions of the model "
            f"(--max-position-embeddings); nearest: {most - length}")


def in_file(path: str | None) -> Iterator[str]:
    """Yield the texts of --prompt-file. Raises UserError, which names the line."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read --prompt-file {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            text = json.loads(line)["text"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"--prompt-file {path}, line {number}: not a JSON object with the key "
                            f'"text" ({error!r})') from error
        require(isinstance(text, str), f'--prompt-file {path}, line {number}: "text" is no string')
        yield text
