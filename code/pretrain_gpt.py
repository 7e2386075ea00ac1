"""Train a GPT with Megatron-LM's command line, or estimate what that would cost.

torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 6 --hidden-size 384 ...
python pretrain_gpt.py --estimate --world-size 64 --num-layers 48 ...
"""

import gc
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the trainer, or with --estimate the estimator, and end the process."""
    gc.set_threshold(100_000)  # importing torch creates millions of objects, and none is garbage
    if "--estimate" in sys.argv[1:]:
        from layout_estimator.main import main
    else:
        from minimegatron.main import main
    main()


if __name__ == "__main__":
    main()
