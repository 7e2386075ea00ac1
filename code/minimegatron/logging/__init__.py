"""What a run reports: log lines, TensorBoard, timers, and files for other programs."""
