"""Prepare text for training: `lab data`, and preprocess_data.py with Megatron-LM's command line.

corpus.py collects text that every machine has, train_vocabulary.py trains a byte-level BPE
vocabulary on it, jsonl.py reads documents, and preprocess.py writes the trainer's `.bin` and `.idx`
files from them. files.py builds all files of a workspace, and cli.py, the command `lab data`,
installs them without ever mixing old and new ones.

The package may import labcore and the trainer's data formats (minimegatron.data). Begin with
preprocess.py; docs/data.md is the user's guide.
"""
