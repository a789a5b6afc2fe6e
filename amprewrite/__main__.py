"""Run the command line: ``python -m amprewrite``."""

from amprewrite.cli import main

if __name__ == "__main__":
    main()
