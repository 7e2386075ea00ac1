"""What a run leaves behind for other tools: a trace in the profiler's format.

trace.py records operations as they run; trace_events.py and chrome_trace.py turn the record into
Chrome's trace format, with the kernel names of kernel_names.py and the curve of memory_levels.py.
profiler.py chooses which steps are recorded. Builds on core and net.
"""
