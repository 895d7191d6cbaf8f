"""Many callers, several models: requests that gather into batches, models by name, ensembles, routes."""
