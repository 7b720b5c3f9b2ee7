"""``python -m embbench.reference``: a command line over `serve`."""

import sys

from embbench.errors import EmbbenchError
from embbench.reference.main import serve, serve_worker
from embbench.reference.options import parse_command


def main() -> int:
    """Serve; on an error one line on stderr and its exit code."""
    try:
        options, hop_fd = parse_command(sys.argv[1:])
        if hop_fd is None:
            serve(options)
        else:
            serve_worker(options, hop_fd)
    except EmbbenchError as error:
        sys.stderr.write(f"embbench: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
