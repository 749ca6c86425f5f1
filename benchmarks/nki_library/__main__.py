"""``python -m benchmarks.nki_library``: run AWS's own kernels, with AWS's own tests, on the simulator."""

import sys

from benchmarks.nki_library.command import main

if __name__ == "__main__":
    sys.exit(main())
