"""Side-by-side measurements, paired in one run; results/ holds their JSON."""
