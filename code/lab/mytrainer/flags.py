"""The flags of my_trainer.py: the subset of pretrain_gpt.py's flags that its loop uses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType

import torch

from lab.mytrainer import pieces
from minimegatron.arguments import Config, parse_arguments
from minimegatron.arguments.checks import DELAYED_ONLY
from minimegatron.arguments.flag import PASSES, RESULTS, SCHEDULE, flag, table_of
from minimegatron.arguments.parse import parse_unchecked
from minimegatron.errors import UserError

MODEL = ("num_layers", "hidden_size", "num_attention_heads", "seq_length",
         "max_position_embeddings", "ffn_hidden_size", "kv_channels",
         "make_vocab_size_divisible_by", "layernorm_epsilon", "init_method_std",
         "attention_dropout", "hidden_dropout", "use_flash_attn", "swiglu", "normalization",
         "position_embedding_type", "rotary_base", "rotary_percent", "group_query_attention",
         "num_query_groups", "untie_embeddings_and_output_weights", "add_bias_linear")
BATCH = ("micro_batch_size", "global_batch_size", "samples_per_rank", "train_iters",
         "train_samples", "seed")
OPTIMIZATION = ("lr", "min_lr", "lr_decay_style", "lr_decay_iters", "lr_decay_samples",
                "lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction", "weight_decay",
                "adam_beta1", "adam_beta2", "adam_eps", "clip_grad")
DATA = ("data_path", "data_impl", "data_cache_path", "split", "vocab_file", "merge_file",
        "tokenizer_type", "tokenizer_model", "eod_mask_loss", "num_workers")
PIPELINE = ("schedule", "balance", "pipeline_model_parallel_layout", "timeline",
            "timeline_iteration")
MEMORY = ("recompute_activations", "activations_checkpoint_method")  # other names of two flags
PARALLEL = ("overlap_grad_reduce", "data_parallel_sharding_strategy", "use_distributed_optimizer",
            "use_megatron_fsdp", "overlap_param_gather")
CHECKPOINTS = ("save", "save_interval", "load")
REST = ("preset", "device", "distributed_timeout_minutes", "local_rank", "log_interval",
        "log_format", "tensorboard_dir", "tensorboard_queue_size")
# The loop always accumulates and averages gradients in fp32.
PRECISION = ("bf16", "accumulate_allreduce_grads_in_fp32", "fp8_recipe", *DELAYED_ONLY)
# The piece that each recipe needs besides fp8.py, and the exercise of lab 13 that builds it.
RECIPES = {"delayed": ("delayed", 3), "blockwise": ("blocks", 6), "mxfp8": ("mx", 7)}
UNTIED = "--untie-embeddings-and-output-weights"
# What your llama.py is, as flags of pretrain_gpt.py. It has no dropout in attention.
LLAMA = {"swiglu": True, "normalization": "RMSNorm", "position_embedding_type": "rope",
         "rotary_percent": 1.0, "untie_embeddings_and_output_weights": True,
         "add_bias_linear": False, "attention_dropout": 0.0}
# What it does not compute, with the reasons.
REFUSED = {
    "autocast": "the linear layers of your regions have backward passes of their own, in which no "
                "Autocast chooses dtypes",
    "fp8_format": "the regions' columns and your RowParallelLinear compute its linear layers, and "
                  "not the Linear of fp8.py",
    "tiled_attention": "mytrainer/attention.py has as many key and value heads as queries",
    "activation_memory_mb": "your Llama runs its layers itself, so none can be grouped; "
                            "--recompute-granularity recomputes them one by one",
    "offload_activations": "your Llama runs its layers itself, outside of offload.py",
    "samples_per_rank": "unequal shares need ranks that each have a whole replica",
    "log_num_zeros_in_grad": "histogram.py would count the elements that several ranks have more "
                             "than once"}
# The files of every run of it.
OWN_MODEL = ("tensor_parallel", "heads", "vocabulary", "randomness", "llama", "grad_norm")
# The files of every pipeline, and the file and the function for each name of --schedule.
STAGES = ("stage", "micro_batches", "llama_stage", "program", "pipeline")
SCHEDULES = {"gpipe": ("gpipe", "gpipe"), "1f1b": ("one_f_one_b", "one_f_one_b"),
             "interleaved": ("interleaved", "interleaved"), "zb-h1": ("zero_bubble", "zb_h1"),
             "zb-h2": ("zero_bubble_2", "zb_h2")}
# The files of ZeRO's stages (Rajbhandari et al. 2020), each of which extends the one before, and
# what all of them need.
ZERO = ("zero", "zero2", "zero3")
SHARDED = ("shards", "clipping")
USED = frozenset((*MODEL, *BATCH, *OPTIMIZATION, *DATA, *MEMORY, *PARALLEL, *PIPELINE, *CHECKPOINTS,
                  *REST, *PRECISION,
                  *(name for piece in pieces.PIECES.values() for name in piece.flags)))
# The loop has no validation, so the only value it accepts is the one that turns validation off.
NO_VALIDATION = {"eval_iters": 0}


@dataclass(frozen=True)
class LoopConfig(Config):
    """The command line of my_trainer.py: the trainer's flags, and a few of its own."""

    samples_per_rank: str | None = flag(
        None, "divide the global batch unequally: the number of samples for each rank, such as "
        "6,2 (default: equal shares)", affects=RESULTS | SCHEDULE)
    ring_all_reduce: bool = flag(
        False, "average gradients with the all_reduce of mytrainer/collectives.py instead of the "
        "communication library's", affects=RESULTS)
    autocast: bool = flag(
        False, "with --bf16 or --fp16: keep the parameters in fp32, and let mytrainer/autocast.py "
        "choose the dtype of each operation", affects=RESULTS | PASSES)
    stochastic_rounding: bool = flag(
        False, "with --bf16: keep no master weights, and let mytrainer/rounding.py round the "
        "updated parameters at random", affects=RESULTS | PASSES)
    activation_memory_mb: float | None = flag(
        None, "limit the activations that the layers save for one micro-batch, in megabytes: "
        "place() of mytrainer/placement.py chooses which layers to recompute", affects=PASSES)
    tiled_attention: bool = flag(
        False, "compute attention with mytrainer/attention.py, which never stores the full score "
        "matrix", affects=RESULTS | PASSES)
    offload_activations: bool = flag(
        False, "keep the activations that the layers save in host memory, with "
        "mytrainer/offload.py", affects=PASSES)

    own_model: bool = flag(
        False, "train your own model, mytrainer/llama.py, also on a single tensor-parallel rank",
        affects=RESULTS | PASSES)
    own_init: bool = flag(
        False, "initialize your own model with mytrainer/randomness.py instead of the values of "
        "pretrain_gpt.py", affects=RESULTS)
    async_tensor_model_parallel_allreduce: bool = flag(
        False, "overlap the backward pass's all-reduces with the weight gradients, with "
        "mytrainer/tp_overlap.py", affects=PASSES)
    delay_wgrad_compute: bool = flag(
        False, "with --sequence-parallel and a schedule that has W: leave the weight gradients of "
        "column-parallel layers to W, with mytrainer/deferred_wgrad.py", affects=PASSES)

    @property
    def has_own_model(self) -> bool:
        """Return whether the model is your llama.py: the only one that several ranks can share."""
        return self.own_model or self.tensor_model_parallel_size > 1 or self.has_pipeline

    @property
    def has_pipeline(self) -> bool:
        """Return whether your executor runs the model's stages."""
        return self.pipeline_model_parallel_size > 1

    @property
    def replicates_query_groups(self) -> bool:
        """Return True: in your heads.py, ranks may have copies of a key and value head."""
        return True

    @property
    def shards_new_params(self) -> bool:
        """Return False: mytrainer/zero3.py shards a model that is on the device."""
        return False

    @property
    def samples(self) -> tuple[int, ...] | None:
        """The number of samples of each rank, or None without --samples-per-rank."""
        text = self.samples_per_rank
        return None if text is None else tuple(map(int, text.split(",")))


def parse(argv: Sequence[str]) -> LoopConfig:
    """Parse the command line into a Config whose device is `cpu` or `cuda`.

    Raises:
        UserError: pretrain_gpt.py would refuse the command line, or the loop would ignore a flag.
    """
    _check_used(parse_unchecked(argv, config=LoopConfig))
    config = parse_arguments(argv, config=LoopConfig)
    if config.samples_per_rank is not None:
        _check_samples(config)
    if config.fp8_format is not None:
        _check_fp8(config)
    _check_memory(config)
    _check_autocast(config)
    _check_rounding(config)
    _check_sharding(config)
    _check_checkpoints(config)
    _check_own_model(config)
    if config.device.startswith("virtual"):
        model = config.device.partition(":")[2] or "h100"
        raise UserError(f"--device {config.device}: on virtual GPUs, start my_trainer.py with "
                        f"virtualrun --gpus {model}:8 code/my_trainer.py, without --device")
    if config.device == "auto":
        return replace(config, device="cuda" if torch.cuda.is_available() else "cpu")
    return config


def _check_used(given: LoopConfig) -> None:
    """Raise UserError for a flag that the loop does not support, or not yet."""
    for name, one in table_of(LoopConfig).items():
        value = getattr(given, name)
        if one.derived or name in USED or value in (one.default, NO_VALIDATION.get(name)):
            continue
        raise UserError(f"{_shown(given, name)}: my_trainer.py does not use this flag; leave it "
                        "out, or pass it to megatron/Megatron-LM/pretrain_gpt.py")


def _shown(config: LoopConfig, name: str) -> str:
    """Return a flag and its value as on the command line."""
    one, value = table_of(LoopConfig)[name], getattr(config, name)
    return one.spellings[0] if isinstance(value, bool) else f"{one.spelling} {value}"


def _check_samples(config: LoopConfig) -> None:
    """Raise UserError unless --samples-per-rank divides the global batch among the ranks."""
    text, ranks = config.samples_per_rank, config.world_size
    micro, batch = config.micro_batch_size, config.global_batch_size
    numbers = [int(number) for number in re.findall(r"\d{1,9}", text)]
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        problem = "expected a number for each rank, separated by commas"
    elif len(numbers) != ranks:
        problem = f"{len(numbers)} number(s) for {ranks} rank(s)"
    elif any(number % micro for number in numbers):
        problem = f"each must be divisible by --micro-batch-size {micro}"
    elif sum(numbers) != batch:
        problem = f"the sum is {sum(numbers)} and not --global-batch-size {batch}"
    else:
        return
    nearest = ",".join(map(str, divide(batch, (numbers + [0] * ranks)[:ranks], micro)))
    raise UserError(f"--samples-per-rank {text}: {problem}; nearest: --samples-per-rank {nearest}")


def divide(batch: int, weights: Sequence[float], micro: int) -> list[int]:
    """Divide a batch among ranks, in whole micro-batches, as nearly as possible by weights.

    Args:
        batch: samples, divisible by `micro`.
        weights: one for each rank, such as its speed; if all are 0, the parts are equal.
        micro: samples per micro-batch.

    Returns the number of samples of each rank (by the method of largest remainders).
    """
    weights = weights if sum(weights) else [1] * len(weights)
    exact = [batch / micro * weight / sum(weights) for weight in weights]
    parts = [int(number) for number in exact]
    behind = sorted(range(len(parts)), key=lambda rank: parts[rank] - exact[rank])
    for rank in behind[:batch // micro - sum(parts)]:
        parts[rank] += 1
    return [micro * part for part in parts]


def _check_memory(config: LoopConfig) -> None:
    """Raise UserError for flags of lab 06 that exclude each other."""
    megabytes = config.activation_memory_mb
    if megabytes is not None:
        if megabytes <= 0:
            raise UserError(f"--activation-memory-mb {megabytes:g}: must be greater than 0; "
                            "nearest: leave it out, and nothing is recomputed")
        if config.recompute_granularity is not None:
            raise UserError(f"--activation-memory-mb {megabytes:g} chooses the layers to "
                            "recompute; leave out --recompute-granularity "
                            f"{config.recompute_granularity}")
    if config.tiled_attention and (config.use_flash_attn or config.attention_dropout):
        other = ("--use-flash-attn" if config.use_flash_attn else
                 f"--attention-dropout {config.attention_dropout:g}")
        nearest = ("leave one of them out" if config.use_flash_attn else
                   "--attention-dropout 0")
        raise UserError(f"--tiled-attention: mytrainer/attention.py cannot be combined with "
                        f"{other}; nearest: {nearest}")


def _check_autocast(config: LoopConfig) -> None:
    """Raise UserError if --autocast lacks a dtype or is combined with a flag that bypasses it.

    Autocast chooses dtypes in the forward pass only. Recomputation, tiled attention, and FP8 layers
    also compute in the backward pass, where operations run in the dtypes of their inputs.
    """
    if not config.autocast:
        return
    if config.precision == "fp32":
        raise UserError("--autocast: add --bf16 or --fp16, which sets the dtype of its GEMMs; "
                        "nearest: --autocast --bf16")
    for name in ("fp8_format", "recompute_granularity", "activation_memory_mb", "tiled_attention"):
        if getattr(config, name) != table_of(LoopConfig)[name].default:
            raise UserError(f"--autocast cannot be combined with {_shown(config, name)}; nearest: "
                            "leave one of them out")


def _check_rounding(config: LoopConfig) -> None:
    """Raise UserError for flags that --stochastic-rounding cannot be combined with."""
    if not config.stochastic_rounding:
        return
    if config.precision != "bf16":
        raise UserError("--stochastic-rounding: mytrainer/rounding.py rounds to bf16; nearest: "
                        "--stochastic-rounding --bf16")
    refused = {"autocast": "--autocast keeps the parameters in fp32"}
    refused |= dict.fromkeys(("save", "load"), "a checkpoint has master weights")
    refused |= dict.fromkeys(("fp8_format", "data_parallel_sharding_strategy",
                              "use_distributed_optimizer"), "supported with master weights only")
    refused |= dict.fromkeys(
        ("own_model", "tensor_model_parallel_size", "pipeline_model_parallel_size"),
        "mytrainer/rounding.py needs the complete model on every rank")
    for name, problem in refused.items():
        if getattr(config, name) != table_of(LoopConfig)[name].default:
            raise UserError(f"--stochastic-rounding with {_shown(config, name)}: {problem}; "
                            "nearest: leave one of them out")


def _check_sharding(config: LoopConfig) -> None:
    """Raise UserError for settings that the files of lab 08 cannot do."""
    stage = config.zero_stage
    if stage == 0:
        return
    chosen = shown_strategy(config)
    if config.data_parallel_size == 1:
        ranks = ("there is one rank, which" if config.world_size == 1 else
                 "the ranks share one replica of the model, so each")
        nearest = 2 * config.world_size
        raise UserError(f"{chosen}: {ranks} would own everything; nearest: start {nearest} ranks "
                        f"with torchrun --nproc_per_node {nearest}, or leave the flag out")
    if config.overlap_param_gather and stage < 3:
        raise UserError(f"--overlap-param-gather with {chosen}: mytrainer/prefetch.py gathers the "
                        "parameters that each rank has freed; nearest: --use-megatron-fsdp "
                        "--data-parallel-sharding-strategy optim_grads_params "
                        "--overlap-param-gather")
    others = {"ring_all_reduce": "mytrainer/zero.py reduce-scatters gradients with the library",
              "samples_per_rank": "all ranks process equally many samples"}
    if stage == 3:
        others |= dict.fromkeys(
            ("offload_activations", "activation_memory_mb"),
            "the layers' parameters are freed, so they cannot be told from activations; nearest: "
            "--data-parallel-sharding-strategy optim_grads")
    for name, problem in others.items():
        if getattr(config, name) != table_of(LoopConfig)[name].default:
            nearest = "" if "; nearest: " in problem else f"; nearest: leave out --{name}".replace(
                "_", "-")
            raise UserError(f"{_shown(config, name)} with {chosen}: {problem}{nearest}")


def shown_strategy(config: LoopConfig) -> str:
    """Return the flag that shards, as on the command line."""
    return _shown(config, "data_parallel_sharding_strategy" if config.use_megatron_fsdp
                  else "use_distributed_optimizer")


def _check_checkpoints(config: LoopConfig) -> None:
    """Raise UserError if a checkpoint would lack a part of the state."""
    flag = next((name for name in ("save", "load") if getattr(config, name) is not None), None)
    if flag and config.fp8_format is not None and config.fp8_recipe == "delayed":
        raise UserError(f"{_shown(config, flag)} with --fp8-recipe delayed: checkpoints do not "
                        "hold the amaxes of earlier steps; nearest: --fp8-recipe tensorwise")


def _check_own_model(config: LoopConfig) -> None:
    """Raise UserError unless your llama.py can do what the flags ask for."""
    size = config.tensor_model_parallel_size
    if not config.has_own_model:
        for name in ("own_init", "async_tensor_model_parallel_allreduce", "delay_wgrad_compute"):
            if getattr(config, name):
                raise UserError(f"{_shown(config, name)} belongs to your own model; nearest: "
                                f"--own-model {_shown(config, name)}")
        if config.group_query_attention and config.tiled_attention:
            raise UserError("--tiled-attention: mytrainer/attention.py has as many key and value "
                            "heads as queries; nearest: leave out --group-query-attention")
        return
    chosen, table = shown_own_model(config), table_of(LoopConfig)
    others = [name for name, value in LLAMA.items() if getattr(config, name) != value
              # Your tied.py needs the two ends on two ranks.
              and not (name == "untie_embeddings_and_output_weights" and config.has_pipeline)]
    if others:
        raise UserError(f"{chosen} trains mytrainer/llama.py, which is a Llama; add "
                        f"{llama_flags(others)}")
    refused = dict(REFUSED)
    if config.has_pipeline:
        refused |= _refused_by_pipelines(config)
    elif size > 1 and config.zero_stage > 1:
        refused["data_parallel_sharding_strategy"] = (
            "your finish_gradients needs whole gradients after the last backward pass; only "
            "--data-parallel-sharding-strategy optim leaves them on every rank until then")
    if config.sequence_parallel:
        refused["async_tensor_model_parallel_allreduce"] = "no layer all-reduces its input"
    if not (config.has_pipeline and config.sequence_parallel):
        refused["delay_wgrad_compute"] = (
            "it delays the weight gradients of your SequenceRegion, which needs --sequence-parallel"
            if config.has_pipeline else "without stages, no schedule has a W")
    if config.recompute_method == "uniform" and config.recompute_num_layers > 1:
        refused["recompute_num_layers"] = "your own layers are recomputed one by one"
    for name, problem in refused.items():
        if getattr(config, name) != table[name].default:
            raise UserError(f"{_shown(config, name)} with {chosen}: {problem}; nearest: leave out "
                            f"{_shown(config, name)}")


def _refused_by_pipelines(config: LoopConfig) -> dict[str, str]:
    """Return the flags that cannot be combined with pipeline stages, each with the reason."""
    refused = {"overlap_grad_reduce": "your executor runs all backward passes of a step in one "
               "call", "eod_mask_loss": "pretrain_gpt.py gives all micro-batches the same weight, "
               "and your micro_batches.py does not",
               "ring_all_reduce": "your collectives.py uses the group of all ranks"}
    if config.hidden_dropout:
        refused["recompute_granularity"] = (
            f"with {_shown(config, 'hidden_dropout')}, a recomputed layer would have the masks of "
            "another micro-batch")
    sharing = "only the optimizer state can be sharded; your executor needs whole gradients"
    if config.zero_stage > 1:
        refused |= dict.fromkeys(("data_parallel_sharding_strategy", "use_distributed_optimizer"),
                                 sharing)
    return refused


def llama_flags(names: Iterable[str] = LLAMA) -> str:
    """Return the flags that describe your llama.py, or some of them, as on the command line."""
    table = table_of(LoopConfig)
    return " ".join(
        table[name].off[0] if LLAMA[name] is False else table[name].spelling if LLAMA[name] is True
        else f"{table[name].spelling} {LLAMA[name]}" for name in names)


def shown_own_model(config: LoopConfig) -> str:
    """Return the flag that asks for your own model, as on the command line."""
    if config.has_pipeline:
        return _shown(config, "pipeline_model_parallel_size")
    return ("--own-model" if config.tensor_model_parallel_size == 1 else
            _shown(config, "tensor_model_parallel_size"))


def _check_fp8(config: Config) -> None:
    """Raise UserError for settings that the files of lab 13 do not compute."""
    if config.fp8_format != "hybrid":
        raise UserError(f"--fp8-format {config.fp8_format}: mytrainer/fp8.py has E4M3 values and "
                        "E5M2 gradients; nearest: --fp8-format hybrid")
    length, algorithm = config.fp8_amax_history_len, config.fp8_amax_compute_algo
    if config.fp8_recipe == "delayed" and length > 1 and algorithm != "max":
        raise UserError(f"--fp8-amax-compute-algo {algorithm}: mytrainer/delayed.py takes the "
                        f"maximum of the {length} entries of its history; nearest: "
                        "--fp8-amax-compute-algo max")


def require_sharding(config: LoopConfig) -> None:
    """Raise UserError unless the files that the sharding strategy needs exist."""
    for name in (*SHARDED, *ZERO[:config.zero_stage]):
        if pieces.load(name) is None:
            piece = pieces.PIECES[name]
            raise UserError(f"{shown_strategy(config)} needs {piece.shown}, which you write in "
                            f"{piece.lab}; until then, leave the flag out")


def require_pieces(config: LoopConfig, wrapper: type) -> None:
    """Raise UserError unless the student's files can do what the flags ask for.

    Args:
        config: the command line.
        wrapper: the class that makes replicas of the model.
    """
    if config.has_own_model:
        _require_own_model(config)
    if config.samples_per_rank is not None and not hasattr(wrapper, "begin"):
        equal = ",".join([str(config.global_batch_size // config.world_size)] * config.world_size)
        raise UserError(f"--samples-per-rank {config.samples_per_rank}: DataParallel in "
                        "mytrainer/ddp.py has no begin(), which you write in lab 14, exercise 7; "
                        f"until then, leave the flag out, so that the ranks have {equal} samples")
    for piece in pieces.PIECES.values():
        for name in piece.flags:
            if (getattr(config, name) != table_of(LoopConfig)[name].default
                    and pieces.load(piece.name) is None):
                raise UserError(f"{_shown(config, name)} needs {piece.shown}, which you write in "
                                f"{piece.lab}; until then, leave the flag out")
    loop = pieces.load("train") if config.samples is None else None
    known = () if loop is None else inspect.signature(loop.train).parameters
    if loop is not None and (config.zero_stage or config.has_own_model) and "clip" not in known:
        chosen = shown_strategy(config) if config.zero_stage else shown_own_model(config)
        raise UserError(f"{chosen}: train in mytrainer/train.py has no parameter clip, so it would "
                        "clip by the norm of this rank's part of the gradient alone; give it "
                        "the parameter clip=None, and call clip(parameters, max_norm) in place of "
                        "torch.nn.utils.clip_grad_norm_ if it is not None, as lab 08 describes; "
                        "until then, leave the flag out")
    if loop is not None and config.fp16 and "scaler" not in known:
        raise UserError("--fp16: train in mytrainer/train.py has no parameter scaler; lab 05, "
                        "exercise 5, builds mytrainer/new/train.py with it, and `lab mytrainer "
                        "--adopt train` puts that in place; until then, leave the flag out")
    if config.ring_all_reduce and "all_reduce" not in inspect.signature(wrapper).parameters:
        raise UserError("--ring-all-reduce: DataParallel in mytrainer/ddp.py has no parameter "
                        "all_reduce, which lab 04 describes; until then, leave the flag out")
    if config.fp8_format is None:
        return
    fp8 = pieces.load("fp8")
    missing = _missing_for_recipe(config, fp8)
    if missing is not None:
        nearest = ("--fp8-recipe tensorwise" if hasattr(fp8, "PerTensor") else
                   "leave --fp8-format out")
        raise UserError(f"--fp8-recipe {config.fp8_recipe}{missing}; nearest: {nearest}")


def _require_own_model(config: LoopConfig) -> None:
    """Raise UserError unless all files of your own model exist."""
    needed = dict.fromkeys(OWN_MODEL, shown_own_model(config))
    if config.has_pipeline:
        needed |= dict.fromkeys(STAGES, shown_own_model(config))
        if not config.untie_embeddings_and_output_weights:
            needed["tied"] = f"{shown_own_model(config)} without {UNTIED}"
        if config.schedule in SCHEDULES:
            needed[SCHEDULES[config.schedule][0]] = _shown(config, "schedule")
        if config.schedule.startswith("zb-"):
            needed["split_backward"] = _shown(config, "schedule")
    for name, chosen in needed.items():
        if pieces.load(name) is None:
            piece = pieces.PIECES[name]
            nearest = ("choose --schedule gpipe, of lab 10" if chosen == _shown(config, "schedule")
                       else f"add {UNTIED}" if name == "tied" else "leave the flag out")
            raise UserError(f"{chosen} needs {piece.shown}, which you write in {piece.lab}; until "
                            f"then, {nearest}")


def _missing_for_recipe(config: Config, fp8: ModuleType) -> str | None:
    """Return what a recipe lacks, as the end of a sentence, or None."""
    name, exercise = RECIPES.get(config.fp8_recipe, ("fp8", 5))
    if pieces.load(name) is None:
        return f" needs mytrainer/{name}.py, which you write in lab 13, exercise {exercise}"
    if name == "delayed" and config.world_size > 1 and pieces.load("amaxes") is None:
        return (f" on {config.world_size} ranks needs mytrainer/amaxes.py, which you write in lab "
                "13, exercise 4")
    if not (hasattr(fp8, "PerTensor") and hasattr(fp8.Linear, "recipe")):
        return (": Linear in mytrainer/fp8.py takes no recipe; you write it in lab 13, exercise 5, "
                "with PerTensor beside it")
    return None
