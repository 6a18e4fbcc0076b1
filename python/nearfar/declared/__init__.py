"""Options and rows of the engine, declared there and written here by ``make declared``.

One module for each command: ``Options`` and ``Row`` are types, ``OPTIONS`` and ``ROWS`` the same as
data (:mod:`nearfar.schema`). Nothing here is edited by hand, and nothing here loads the engine.
"""
