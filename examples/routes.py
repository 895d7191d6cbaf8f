"""Shortest routes as a program: the rule of reachability again, with a minimum in place of an or.

Run it: python examples/routes.py
"""

from pathlib import Path

import numpy as np

import tensorlogic as tl

HERE = Path(__file__).parent
CITIES = ["Oslo", "Bergen", "Trondheim", "Bodø"]
ROADS = {("Oslo", "Bergen"): 463, ("Oslo", "Trondheim"): 494, ("Trondheim", "Bodø"): 709, ("Bergen", "Trondheim"): 610}


def main() -> None:
    """Bind the roads, run the program and print the distances."""
    road = np.full((len(CITIES), len(CITIES)), np.inf)
    np.fill_diagonal(road, 0)
    for (a, b), length in ROADS.items():
        i, j = CITIES.index(a), CITIES.index(b)
        road[i, j] = road[j, i] = length
    found = tl.load(HERE / "routes.tl").run(Road=road)
    for city, row, farthest in zip(CITIES, found["Distance"], found["Farthest"], strict=True):
        print(f"{city:>9}  {'  '.join(f'{d:5.0f}' for d in row)}   farthest: {farthest:.0f} km")


if __name__ == "__main__":
    main()
