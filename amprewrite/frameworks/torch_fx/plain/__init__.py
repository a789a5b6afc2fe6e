"""Plain models of converted ones: their classes, and copies of their parts."""
