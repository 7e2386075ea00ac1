"""Adam on flat buffers, loss scaling, and the learning-rate schedule."""
