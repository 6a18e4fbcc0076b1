"""``python -m nearfar`` is the ``nearfar`` command."""

from nearfar.cli import main

main()
