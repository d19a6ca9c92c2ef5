"""What runs first in a process that Ray started for shoal.

These modules import the standard library and Ray only: the environment, the backend and the hooks
of a worker are settled here, before the user's class, and what it imports, is loaded.
"""
