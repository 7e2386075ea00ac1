"""Train a GPT with Megatron-LM's command line.

torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 6 --hidden-size 384 ...
"""

from minimegatron.main import main

if __name__ == "__main__":
    main()
