"""Stand-ins for packages that need CUDA: flash_attn, xformers, transformer_engine, and apex.

A program that imports one of them finds the stand-in if the package itself is not installed. It has
the shapes, the memory, and the cost of the package's kernels on a virtual GPU, and the values of
small tensors. finder.py makes the folders here importable under the packages' names.
"""
