"""Published results against ours: one module a study, each with ``rows``."""
