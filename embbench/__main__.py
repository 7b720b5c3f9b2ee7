"""``python -m embbench``: the same as the console script."""

from embbench.cli import main

if __name__ == "__main__":
    main()
