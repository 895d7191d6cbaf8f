"""Values whose operations run at once and are recorded: variables, tapes, NumPy calls on them."""
