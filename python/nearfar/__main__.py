"""``python -m nearfar`` is the ``nearfar`` command."""

import sys


def main() -> None:
    """Run the command line; print one line if it cannot be imported."""
    try:
        from nearfar.cli import main as run

        run()
    except (ImportError, MemoryError, OSError) as error:
        what = "out of memory" if isinstance(error, MemoryError) else error
        print(
            f"nearfar: error: {what}; install nearfar again, or raise the limits on memory and "
            "open files (`ulimit -v`, `ulimit -n`)",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
