"""CPU, CUDA, and virtual GPUs behind one interface; nothing outside knows which one it has."""
