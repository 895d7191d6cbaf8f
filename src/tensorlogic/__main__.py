"""``python -m tensorlogic`` is the command ``tensorlogic``."""

from .cli import main

main()
