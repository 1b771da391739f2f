"""`python -m favorit`."""

from favorit.cli import main

main()
