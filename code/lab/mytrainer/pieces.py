"""The files that students write in `mytrainer/`: what each must define, and how to load them."""

from __future__ import annotations

import ast
import difflib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from labcore import workspace
from labcore.errors import LabError
from labcore.listing import listed

FOLDER = "mytrainer"
NEW = "new/"  # the names of files that a later lab extends begin with it
ERROR_DELAY = 3  # seconds that other ranks wait before they print an error that rank 0 has, too


@dataclass(frozen=True)
class Piece:
    """One file that a lab has students write.

    Attributes:
        name: the file name without .py, in the folder.
        lab: the lab, as students call it.
        defines: the functions or classes that other code imports from it.
        purpose: what the trainer uses it for, in a few words.
        flags: the flags that need the file, as fields of the command line.
    """

    name: str
    lab: str
    defines: tuple[str, ...]
    purpose: str
    flags: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The file's path in messages."""
        return f"{FOLDER}/{self.name}.py"

    @property
    def path(self) -> Path:
        """The file's path in the workspace."""
        return workspace.home() / FOLDER / f"{self.name}.py"

    @property
    def module(self) -> str:
        """The name of the file's module."""
        return f"{FOLDER}.{self.name.replace('/', '.')}"

    @property
    def target(self) -> Piece:
        """The piece that this one extends, or this one."""
        return PIECES[self.name.removeprefix(NEW)]


SHARDING = ("data_parallel_sharding_strategy", "use_distributed_optimizer")
PIECES = {piece.name: piece for piece in (
    Piece("collectives", "lab 04", ("all_reduce",), "ring all-reduce", ("ring_all_reduce",)),
    Piece("ddp", "lab 04", ("DataParallel",), "data parallelism"),
    Piece("launch", "lab 04", ("connect", "own_samples"), "ranks and shares"),
    Piece("train", "lab 04", ("train",), "training loop"),
    Piece("histogram", "lab 05", ("log2_histogram",), "gradient histogram", (
        "log_num_zeros_in_grad",)),
    Piece("precision", "lab 05", ("MixedPrecision",), "master weights", ("fp16",)),
    Piece("unscale", "lab 05", ("unscale",), "overflow check", ("fp16",)),
    Piece("scaler", "lab 05", ("LossScaler",), "loss scaling", (
        "fp16", "loss_scale", "initial_loss_scale", "min_loss_scale", "loss_scale_window",
        "hysteresis")),
    Piece("autocast", "lab 05", ("Autocast",), "autocast", ("autocast",)),
    Piece("rounding", "lab 05", ("StochasticRounding",), "stochastic rounding", (
        "stochastic_rounding",)),
    Piece("saved", "lab 06", ("SavedBytes",), "saved-bytes meter", ("activation_memory_mb",)),
    Piece("states", "lab 06", ("States",), "replayed states"),
    Piece("checkpointing", "lab 06", ("checkpoint",), "recomputation", (
        "recompute_granularity", "recompute_method", "recompute_num_layers",
        "activation_memory_mb")),
    Piece("placement", "lab 06", ("place",), "best checkpoints", ("activation_memory_mb",)),
    Piece("attention", "lab 06", ("attention",), "tiled attention", ("tiled_attention",)),
    Piece("offload", "lab 06", ("Offload",), "offloading", ("offload_activations",)),
    Piece("shards", "lab 08", ("ShardLayout",), "shard layout", (*SHARDING, "save", "load")),
    Piece("zero", "lab 08", ("Zero1",), "sharded optimizer", SHARDING),
    Piece("zero2", "lab 08", ("Zero2",), "sharded gradients"),
    Piece("zero3", "lab 08", ("Zero3",), "sharded parameters"),
    Piece("prefetch", "lab 08", ("Prefetching",), "prefetching", ("overlap_param_gather",)),
    Piece("clipping", "lab 08", ("clip_grad_norm",), "sharded clipping", SHARDING),
    Piece("reshard", "lab 08", ("reshard",), "resharding", ("load",)),
    Piece("tensor_parallel", "lab 09", ("Region", "parameter", "ColumnParallelLinear",
                                        "RowParallelLinear", "MLP"), "tensor parallelism", (
        "tensor_model_parallel_size", "own_model")),
    Piece("heads", "lab 09", ("Attention", "finish_gradients"), "partitioned heads"),
    Piece("vocabulary", "lab 09", ("VocabParallelEmbedding", "cross_entropy"), "vocabulary"),
    Piece("randomness", "lab 09", ("initialize", "Dropout", "begin_micro_batch"), "random numbers",
          ("own_init",)),
    Piece("llama", "lab 09", ("Llama",), "model"),
    Piece("sequence_parallel", "lab 09", ("SequenceRegion",), "sequence parallelism", (
        "sequence_parallel",)),
    Piece("tp_overlap", "lab 09", ("OverlapRegion",), "overlap", (
        "async_tensor_model_parallel_allreduce",)),
    Piece("grad_norm", "lab 09", ("clip_grad_norm",), "clipping of parts"),
    Piece("layer_memory", "lab 09", ("saved_bytes",), "layer memory"),
    Piece("stage", "lab 10", ("Stage",), "passes of a stage"),
    Piece("micro_batches", "lab 10", ("loss_weights",), "weights of losses"),
    Piece("gpipe", "lab 10", ("one_by_one", "gpipe"), "GPipe"),
    Piece("llama_stage", "lab 10", ("LlamaStage",), "part of the model"),
    Piece("pipeline", "lab 10", ("BlockingLinks", "Pipeline"), "pipeline executor", (
        "pipeline_model_parallel_size",)),
    Piece("program", "lab 10", ("parse", "spell", "consumer", "add_communication"),
          "sends and receives"),
    Piece("p2p", "lab 10", ("Links",), "asynchronous sends"),
    Piece("tied", "lab 10", ("TiedEnds",), "tied embedding"),
    Piece("one_f_one_b", "lab 11", ("one_f_one_b",), "1F1B"),
    Piece("split", "lab 11", ("best_split",), "layers per stage"),
    Piece("interleaved", "lab 11", ("interleaved",), "interleaving", (
        "num_layers_per_virtual_pipeline_stage",)),
    Piece("break_even", "lab 11", ("step_time", "break_even"), "when chunks pay"),
    Piece("grid", "lab 11", ("Grid",), "process groups"),
    Piece("pipeline_memory", "lab 11", ("peak_bytes",), "memory of a schedule"),
    Piece("weight_stash", "lab 12", ("WeightStash",), "stashed weights"),
    Piece("synced_stash", "lab 12", ("delay", "SyncedStash"), "weight versions"),
    Piece("stash_recompute", "lab 12", ("RecomputingStash",), "recomputed versions"),
    Piece("zero_bubble", "lab 12", ("zb_h1",), "ZB-H1"),
    Piece("zero_bubble_2", "lab 12", ("zb_h2",), "ZB-H2"),
    Piece("split_backward", "lab 12", ("SplitStage",), "weight gradients later"),
    Piece("deferred_wgrad", "lab 12", ("DeferringStage", "deferred_columns"),
          "deferred weight gradients", ("delay_wgrad_compute",)),
    Piece("delayed", "lab 13", ("DelayedScale",), "delayed scaling"),
    Piece("amaxes", "lab 13", ("share_amaxes",), "amaxes of all ranks"),
    Piece("fp8", "lab 13", ("Linear",), "FP8 linear layers", ("fp8_format",)),
    Piece("blocks", "lab 13", ("Blocks",), "block scales"),
    Piece("mx", "lab 13", ("MX",), "MXFP8"))}
# Extended versions, which students write beside the file that works and then adopt.
EXTENDED = {piece.name: piece for piece in (
    Piece(NEW + "train", "lab 05", ("train",), "loss scaling"),
    Piece(NEW + "ddp", "lab 14", ("DataParallel",), "unequal replicas"))}


class PieceError(LabError):
    """Raised if a piece cannot be used. The message names the file and what to do."""


def find(name: str) -> Piece:
    """Return the piece with this name. Raises LabError, which suggests the nearest name."""
    known, path = PIECES | EXTENDED, Path(name.removesuffix(".py"))
    name = path.name if path.parent.name != NEW.strip("/") else NEW + path.name
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    raise LabError(f"{name}: no piece of {FOLDER}/ has this name; nearest: "
                   + (near[0] if near else ", ".join(PIECES)))


def load(name: str) -> ModuleType | None:
    """Import a piece from the workspace. Return None if its file does not exist.

    Raises:
        PieceError: the file cannot be imported, or it does not define the piece's name.
    """
    piece = (PIECES | EXTENDED)[name]
    if not piece.path.exists():
        _explain_near_file(piece)
        return None
    import minite  # noqa: F401  replaces torch._scaled_mm, which is slow on CPUs with AMX

    home = str(workspace.home())
    if home not in sys.path:  # so that one piece can import another: from mytrainer import ...
        sys.path.insert(0, home)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(piece.module)
    except Exception as error:  # the student's code can raise anything
        message = blame(error)
        if not message.startswith(FOLDER):
            message = f"{piece.shown}: {message}"
        test = "" if name in PIECES else f" --adopt {piece.target.name}"
        raise PieceError(f"{message}; `lab mytrainer{test}` tests the file once you have fixed it"
                         ) from error
    for name in piece.defines:
        if not hasattr(module, name):
            raise PieceError(f"{piece.shown} does not define {name}{_near_name(piece, name)}")
    return module


def describe() -> str:
    """Return the files of the loaded pieces, as text for the log."""
    names = [piece.shown for piece in PIECES.values() if piece.module in sys.modules]
    if not names:
        return f"no piece of {FOLDER}/ (nothing to communicate)"
    return listed(names)


def blame(error: BaseException) -> str:
    """Return an error as one line, which begins with the line of `mytrainer/` that raised it."""
    words = f"{type(error).__name__}: {str(error).strip()}".rstrip(": ").splitlines()[0]
    folder = str(workspace.home() / FOLDER)
    if isinstance(error, SyntaxError) and (error.filename or "").startswith(folder):
        return f"{FOLDER}/{Path(error.filename).relative_to(folder)}, line {error.lineno}: {words}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(folder):
            path = Path(frame.filename).relative_to(folder)
            return f"{FOLDER}/{path}, line {frame.lineno}: {words}"
    return words


def run(main: Callable[[], None]) -> None:
    """Run a program that uses pieces. If it fails, print the error and exit with code 1.

    Errors in a piece are printed with their traceback.
    """
    from minimegatron.errors import UserError
    from minimegatron.failures import lost_peer, print_unexpected_error
    from minimegatron.main import leave

    rank = int(os.environ.get("RANK", 0))
    try:
        main()
    except (LabError, UserError) as error:
        if rank:  # usually all ranks have this error; rank 0 prints it, and the launcher kills them
            time.sleep(ERROR_DELAY)
        print(f"[rank {rank}] error: {error}", file=sys.stderr, flush=True)
        leave(1)
    except Exception as error:
        print_unexpected_error(error, rank)
        message = blame(error)
        if message.startswith(FOLDER) and lost_peer(error) is None:
            print(f"[rank {rank}] error: {message}", file=sys.stderr, flush=True)
        leave(1)  # immediately: collectives that wait for other ranks would hang or abort


def _near_name(piece: Piece, missing: str) -> str:
    """Return a hint with the closest match among the file's functions and classes."""
    names = [node.name for node in ast.parse(piece.path.read_bytes()).body
             if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(missing.lower(), folded, n=1, cutoff=0.5)
    return f"; rename {folded[near[0]]} to {missing}" if near else ""


def _explain_near_file(piece: Piece) -> None:
    """Raise PieceError if a file in the folder has almost the right name."""
    files = {path.stem.lower(): path.name for path in piece.path.parent.glob("*.py")
             if path.stem not in PIECES and not path.stem.startswith(f"{piece.name}.")}
    near = difflib.get_close_matches(piece.path.stem, files, n=1, cutoff=0.65)
    if near:
        wrong = piece.path.with_name(files[near[0]]).relative_to(workspace.home())
        raise PieceError(f"{piece.shown} does not exist; rename {wrong} to {piece.path.name}")
