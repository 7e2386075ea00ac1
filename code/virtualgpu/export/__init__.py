"""Accounts of a run's time and memory, and traces for other tools.

ledger.py accounts for a run while it happens: steps.py finds the steps, work.py adds up what was
computed, blocks.py and owners.py divide the memory, and measures.py turns all of it into data.

trace.py records operations as they run; trace_events.py and chrome_trace.py turn the record into
Chrome's trace format, with the kernel names of kernel_names.py and the curve of memory_levels.py.
profiler.py chooses which steps are recorded. chakra.py makes Chakra's execution trace of the same
record, memory_timeline.py shows memory over time by category, and files.py writes all of them.
Builds on core and net.
"""
