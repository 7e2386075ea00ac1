"""Accelerators without hardware: modelled time and memory for programs on meta tensors."""
