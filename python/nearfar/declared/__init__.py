"""Options and rows of the commands, written here by ``make declared``.

One module for each command: ``Options`` and ``Row`` are types, ``OPTIONS`` and ``ROWS`` the same as
data (:mod:`nearfar.schema`). Nothing here is edited by hand, and nothing here loads the engine.
"""
