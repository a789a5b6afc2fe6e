"""Facts about a program: classes, demand, weights. Nothing is decided here."""
