"""Entry point of `python -m virtualgpu.run`, the same as the `virtualrun` command.

Nothing imports this module: the package's attribute `run` is the function.
"""

import sys

from virtualgpu.launch.command import main

if __name__ == "__main__":
    sys.exit(main())
