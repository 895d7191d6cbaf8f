"""Doing something in a forked process, which may die of it."""

import os
import warnings


def in_child(action):
    """Do something in a forked process and return how that ended: 0, or the signal that ended it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks among threads: the child waits for none
        child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(70)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
