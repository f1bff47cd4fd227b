"""What an evaluation stops with when something given to it cannot be used."""


class EvaluationError(ValueError):
    """A model, a file or an option that cannot be used; the message is one line and says which and why."""
