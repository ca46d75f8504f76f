"""`python -m lmql_lite`."""

from lmql_lite.apps.cli import main

main()
