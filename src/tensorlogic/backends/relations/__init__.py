"""Boolean parts of plans on relations: joins, unions, complements and fixpoints of sets of tuples."""
