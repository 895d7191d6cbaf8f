"""Programs: facts, rules and equations held together, evaluated when something is asked, by name."""
