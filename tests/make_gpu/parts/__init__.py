"""Parts for test_make_gpu.py: one that works, and one for each way to fail."""
