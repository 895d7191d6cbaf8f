"""One graph on several ranks: shares of tensors, stages of a pipeline, and the ways between the ranks."""
