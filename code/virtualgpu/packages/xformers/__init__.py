"""A stand-in for xformers (github.com/facebookresearch/xformers): xformers.ops on virtual GPUs."""

__version__ = "0.0.35"
