"""``python -m benchmarks.baseline``: time the kernels of 1e68255 under the present timing model."""

import sys

from benchmarks.baseline.command import main

if __name__ == "__main__":
    sys.exit(main())
