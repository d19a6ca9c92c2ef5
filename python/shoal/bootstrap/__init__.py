"""The code that runs first in a process that Ray starts for shoal.

Here a worker gets its environment and backend, and runs its hooks, before the user's class and the
modules that it imports are loaded. These modules therefore import little: the standard library, Ray
and small modules of shoal.
"""
