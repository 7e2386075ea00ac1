"""PyTorch's CUDA interface on virtual GPUs: unmodified programs see cuda:N where C++ sees meta.

facade.py installs everything, once per process. mode.py sends every operation to the modeled GPU,
to the host, or to both; downloads.py copies tensors from the GPU to the host. values.py carries
real values of small tensors along, and unknown.py stands for all others. tensors.py, cuda.py,
streams.py, and timers.py replace what a program can ask torch;
autocast.py and attention.py choose the kernels that CUDA would choose. private_names.py lists the
private names of torch that all this relies on. Builds on core, net, and export.
"""
