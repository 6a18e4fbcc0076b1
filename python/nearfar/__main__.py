"""``python -m nearfar`` is the ``nearfar`` command."""

import sys


def main() -> None:
    """Run the command line, or say in one line what of it cannot be loaded."""
    try:
        from nearfar.cli import main as run

        run()
    except (ImportError, MemoryError, OSError) as error:
        what = "memory: there is no more" if isinstance(error, MemoryError) else error
        print(
            f"nearfar: error: {what}; install nearfar again, or raise the limits on memory and "
            "open files (`ulimit -v`, `ulimit -n`)",
            file=sys.stderr,
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
