"""What publishing stops with."""


class PublishError(ValueError):
    """Something that cannot be published; the message is one line and says what to do."""
