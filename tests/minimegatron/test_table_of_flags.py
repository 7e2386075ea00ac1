"""One declaration is all that a new flag needs; whatever lists flags is derived from it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

import pytest

from labkit.check import compared
from labkit.check.allowed import EstimateHardware, flags_for_estimate, use
from minimegatron.arguments import Config
from minimegatron.arguments.checks import check
from minimegatron.arguments.flag import (
    COST,
    NOTHING,
    PASSES,
    RESULTS,
    STATE,
    Bound,
    RelatedFlags,
    flag,
    names_affecting,
    table_of,
)
from minimegatron.arguments.parse import build_parser, parse_unchecked
from minimegatron.arguments.table import EstimateConfig
from minimegatron.errors import UserError

GOOD = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 "
        "--max-position-embeddings 32 --micro-batch-size 2 --lr 1e-3 --train-iters 10 "
        "--data-path d --vocab-file v --merge-file m ")
TWO_TO_EIGHT = Bound("must be from 2 to 8; nearest: {flag} 2", low=2, high=8)


@dataclass(frozen=True)
class Extended(Config):
    """Attention that is not written yet."""

    attention_window: int | None = flag(
        None, "tokens that attention sees", "--window", affects=PASSES | STATE, bounds=TWO_TO_EIGHT,
        largest=6, needs=RelatedFlags(("use_flash_attn",), "{flag} {value} needs --use-flash-attn"),
        excludes=RelatedFlags(("kv_channels",), "{flag} {value} with --kv-channels {kv_channels}"))
    local_attention: bool = flag(
        False, "a short window", affects=PASSES, sets=("attention_window",))
    rope_base: float = flag(10000.0, "the largest wavelength", affects=RESULTS)
    log_heads: bool = flag(True, "no heads in the log", affects=NOTHING, off=("--no-log-heads",))


def parsed(flags: str) -> Extended:
    return check(parse_unchecked(shlex.split(GOOD + flags), True, Extended), 0, 1)


def test_help_and_parser_have_the_new_flags_under_their_topic():
    page = build_parser(Extended).format_help()
    topic = page[page.index("Attention that is not written yet:"):]
    assert "--attention-window ATTENTION_WINDOW, --window ATTENTION_WINDOW" in topic
    assert "the largest wavelength (default: 10000.0)" in topic
    result = parsed("--window 4 --use-flash-attn --attention-dropout 0 --no-log-heads")
    assert (result.attention_window, result.rope_base, result.log_heads) == (4, 10000.0, False)


@pytest.mark.parametrize(("flags", "message"), [
    ("--window two", "argument --attention-window/--window: invalid int value: 'two'"),
    ("--window 1 --use-flash-attn", "--attention-window 1: must be from 2 to 8; nearest: "
     "--attention-window 2"),
    ("--window 7 --use-flash-attn", "--attention-window 7: must be at most 6"),
    ("--window 4", "--attention-window 4 needs --use-flash-attn"),
    ("--window 4 --use-flash-attn --attention-dropout 0 --kv-channels 8",
     "--attention-window 4 with --kv-channels 8"),
    ("--rope-base nan", "--rope-base nan: must be a finite number"),
    ("--rope-bass 1", "unrecognized argument --rope-bass; did you mean --rope-base?")])
def test_type_bounds_and_relations_are_checked(flags, message):
    with pytest.raises(UserError) as error:
        parsed(flags)
    assert str(error.value) == message


def test_a_script_check_compares_what_results_or_cost_depend_on():
    new = set(compared.compared(Extended)) - set(compared.compared(Config))
    assert new == {"attention_window", "rope_base"}


def test_an_estimate_gets_what_its_cost_depends_on():
    table = table_of(Extended)
    assert [use(table[name]) for name in ("attention_window", "local_attention", "rope_base")] == [
        "passed", "replaced", "left out"]
    config = parsed("--window 4 --use-flash-attn --attention-dropout 0 --rope-base 5")
    words = flags_for_estimate(config, EstimateHardware("virtual:v100", 4), 500)
    assert words[words.index("--attention-window") + 1] == "4"
    assert "--rope-base" not in words
    assert "attention_window" in names_affecting(PASSES, Extended)  # the estimator's cache


def test_a_checkpoint_must_match_in_what_the_saved_parameters_depend_on():
    assert set(names_affecting(STATE, Extended)) - set(names_affecting(STATE, Config)) == {
        "attention_window"}


def test_a_flag_without_a_declared_effect_is_refused():
    with pytest.raises(TypeError, match="affects"):
        flag(None, "tokens that attention sees")
    with pytest.raises(TypeError, match="minimum"):
        flag(None, "tokens that attention sees", affects=COST, minimum=1)


def test_a_field_that_is_not_declared_as_a_flag_is_refused():
    @dataclass(frozen=True)
    class Bare(Config):
        attention_window: int = 1

    @dataclass(frozen=True)
    class Untyped(Config):
        attention_window: tuple[int, ...] = flag(None, "tokens that attention sees", affects=COST)

    with pytest.raises(TypeError, match=r"Bare.attention_window: declare it with flag\(\)"):
        table_of(Bare)
    with pytest.raises(TypeError, match=r"Untyped.attention_window: tuple.* needs type="):
        table_of(Untyped)


def test_every_name_in_the_table_is_a_field_and_every_default_is_in_its_bounds():
    table = table_of(EstimateConfig)
    for line in table.values():
        others = [*(line.needs.fields if line.needs else ()),
                  *(line.excludes.fields if line.excludes else ()), *line.sets]
        assert set(others) <= set(table), line.name
        assert line.default is None or all(one.accepts(line.default) for one in line.bounds)
        for relation in filter(None, (line.needs, line.excludes)):
            relation.message.format(**{**vars(EstimateConfig()), "flag": line.spelling, "value": 1})


def test_a_config_is_still_a_plain_frozen_dataclass():
    config = replace(parsed(""), hidden_size=128)
    assert config.hidden_size == 128 and config.rope_base == 10000.0
    with pytest.raises(AttributeError):
        config.hidden_size = 1
