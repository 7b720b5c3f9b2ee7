"""``python -m embbench.reference``: a command line over `main`."""

import sys

from embbench.errors import EmbbenchError
from embbench.reference.main import main


def run() -> int:
    """Serve; on an error one line on stderr and its exit code."""
    try:
        main(sys.argv[1:])
    except EmbbenchError as error:
        sys.stderr.write(f"embbench: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(run())
