"""List the GPU models that virtual GPUs can have: `lab devices`."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from labcore.errors import LabError

if TYPE_CHECKING:
    from virtualgpu.core.card import Card

HEAD = "virtual GPUs: their time and memory are modeled, no hardware is needed"
FOOT = ("fp32, fp16, bf16: TFLOP/s of dense GEMMs; links: GB/s per direction.",
        "Details of one model: lab devices GPU. To use it: --device virtual:GPU, or lab cluster up "
        "--gpus GPU:2.")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    text = "list the GPU models that virtual GPUs can have"
    parser = subparsers.add_parser("devices", help=text, description=text)
    parser.add_argument("card", nargs="?", metavar="GPU",
                        help="show all figures of this GPU model, with their sources")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run `lab devices`. Raises LabError if there is no such GPU model."""
    from virtualgpu.core import cards
    from virtualgpu.core.errors import UnknownCard

    try:
        model = cards.find(arguments.card) if arguments.card is not None else None
    except UnknownCard as error:
        raise LabError(f"devices {arguments.card}: {error}") from error
    if arguments.json:
        shown = as_dict(model) if model else [as_dict(card) for card in cards.CARDS.values()]
        print(json.dumps(shown, indent=2))
    elif model:
        print("\n".join(details(model)))
    else:
        print("\n".join(table(list(cards.CARDS.values()))))


def as_dict(card: Card) -> dict:
    """Return all fields and aliases as a dictionary for JSON."""
    return {"virtual": True, **asdict(card), "aliases": aliases(card)}


def aliases(card: Card) -> list[str]:
    from virtualgpu.core import cards

    return [alias for alias, name in cards.ALIASES.items() if name == card.name]


def links(card: Card) -> str:
    pcie = f"PCIe {card.pcie / 1e9:g} GB/s"
    return f"NVLink {card.nvlink / 1e9:g} GB/s, {pcie}" if card.nvlink else pcie


def table(all_cards: list[Card]) -> list[str]:
    """Return the lines of a table, with one row per GPU model, and the data sheets below it."""
    sheets = [card.sources[0].removeprefix("data sheet: ").partition(";")[0] for card in all_cards]
    numbers = {sheet: f"[{i}]" for i, sheet in enumerate(dict.fromkeys(sheets), 1)}
    rows = [("GPU", "product", "memory", "bandwidth", "fp32", "fp16", "bf16", "links", "source")]
    for card, sheet in zip(all_cards, sheets, strict=True):
        peaks = (f"{card.tflops[dtype]:g}" if dtype in card.tflops else "-"
                 for dtype in ("fp32", "fp16", "bf16"))
        rows.append((card.name, card.product, f"{card.memory / 2**30:.2f} GiB",
                     f"{card.bandwidth / 1e9:g} GB/s", *peaks, links(card), numbers[sheet]))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [HEAD, "", *lines, "", *(f"{number} {sheet}" for sheet, number in numbers.items()), "",
            *FOOT]


def details(card: Card) -> list[str]:
    """Return the lines about one GPU model, with the efficiency that programs reach."""
    reached = card.efficiency
    flash = "FlashAttention-2" if "bf16" in card.tflops else "FlashAttention"  # 2 needs Ampere
    names = f" (also {', '.join(aliases(card))})" if aliases(card) else ""
    peer = "" if card.nvlink else (", with peer-to-peer access" if card.peer else
                                   ", transfers between GPUs go through host memory")
    return [
        f"virtual {card.name}{names}: {card.product}, {card.architecture}, {card.sms} "
        "multiprocessors",
        f"  memory       {card.memory / 2**30:.2f} GiB, including CUDA's context of "
        f"{card.context / 2**20:,.0f} MiB" + (
            f" ({card.full_context / 2**20:,.0f} MiB before CUDA 11.7)" if card.full_context
            else ""),
        f"  bandwidth    {card.bandwidth / 1e9:g} GB/s; programs reach {reached.vector:.0%}",
        *(f"  {dtype:<12} {peak:g} TFLOP/s; programs reach {reached.matmul[dtype]:.0%}"
          for dtype, peak in card.tflops.items()),
        f"  attention    {flash} reaches up to {reached.attention:.0%} of the 16-bit peak",
        f"  links        {links(card)}{peer}; transfers reach {reached.link:.0%}",
        f"  network      {card.network}, unless the cluster sets another one",
        f"  launch       {reached.kernel * 1e6:g} us for the shortest kernel, "
        f"{reached.dispatch * 1e6:g} us on the host",
        "sources:",
        *(f"  {source}" for source in card.sources),
    ]
