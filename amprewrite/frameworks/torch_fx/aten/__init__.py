"""ATen: operators, their arguments, dtypes, source locations and decompositions."""
