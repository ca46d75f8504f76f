"""Mistakes that mypy --strict and pyright both find, on the lines that end in `# wrong` and on no other."""

from well_used import Trip, list_of, packing

import lmql_lite as lq

packing(3)  # wrong
packing()  # wrong
packing(tempratur=1)  # wrong
packing("Rome", tempratur=1)  # wrong
packing.run_sync(3)  # wrong
packing.map_sync(["Rome"], concurency=2)  # wrong
packing.with_options(tempratur=1)  # wrong
packing.with_options(seed="x")  # wrong
Trip().pack("x")  # wrong
Trip.named(3)  # wrong
Trip().named(3)  # wrong
text: str = list_of("Rome")  # wrong
lq.query(tempratur=1)  # wrong
