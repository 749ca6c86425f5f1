"""``python benchmarks/baseline/run.py``: the kernels of 1e68255 under the present timing model."""

import sys

from baseline_command import main

if __name__ == "__main__":
    sys.exit(main())
