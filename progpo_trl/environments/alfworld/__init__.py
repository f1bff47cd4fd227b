"""ALFWorld's text game: our own engine, exact to the word, for the official games and for generated ones."""
