"""Reports of a run: log lines, metrics, TensorBoard, timers, timelines, and profiles."""
