"""WebShop in text: our own engine, exact on the recorded behaviour of the original, shared by all episodes."""
