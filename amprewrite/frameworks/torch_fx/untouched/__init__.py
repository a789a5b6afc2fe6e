"""Leave a model as it was after every run that is not the user's own."""
