"""Shortest paths: the transitive closure again, in the min-plus algebra.

Change the algebra and the same join-and-project finds distances instead of truths. Run it: python examples/shortest_paths.py
"""

import numpy as np

import tensorlogic as tl

CITIES = ["Oslo", "Bergen", "Trondheim", "Bodø"]
ROADS = {("Oslo", "Bergen"): 463, ("Oslo", "Trondheim"): 494, ("Trondheim", "Bodø"): 709, ("Bergen", "Trondheim"): 610}


def distance_graph() -> tl.EinsumGraph:
    """Build the fixpoint d = min(d, d ⊕ road) for any number of cities."""
    b = tl.GraphBuilder()
    road = b.input("road", ("city", "city"), "float64")
    longer = lambda d: b.einsum("ij,jk->ik", d, road, algebra="min_plus")  # noqa: E731
    return b.build(distance=b.fixpoint(longer, road, combine="min"))


def main() -> None:
    """Print the distance between every two cities."""
    n = len(CITIES)
    road = np.full((n, n), np.inf)
    np.fill_diagonal(road, 0)
    for (a, c), km in ROADS.items():
        i, j = CITIES.index(a), CITIES.index(c)
        road[i, j] = road[j, i] = km
    distance = tl.Executor().execute(distance_graph(), {"road": road})["distance"]
    for i in range(n):
        for j in range(i):
            print(f"{CITIES[j]:>9} - {CITIES[i]:<9} {distance[i, j]:5.0f} km")


if __name__ == "__main__":
    main()
