"""``python -m trnrt`` is ``trnrt``."""

from trnrt.cli import main

main()
