#!/usr/bin/env python3
"""Tokenize JSON lines for pretrain_gpt.py, with Megatron-LM's command line:

    python preprocess_data.py --input my.jsonl --output-prefix my-gpt2 --append-eod \\
        --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt
"""

import sys

from corpus_tools.preprocess import main

if __name__ == "__main__":
    sys.exit(main())
