"""`python -m infinite_scheduler`: the command line."""

import sys

from infinite_scheduler.cli import main

if __name__ == "__main__":
    sys.exit(main())
