"""What a caller did wrong."""


class ChatError(ValueError):
    """Messages, tools or template arguments that the chat template cannot use; the message is for the caller."""
