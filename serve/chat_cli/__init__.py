"""`dspine chat`: a conversation in the terminal, with the engine in the same process.

`cli` opens the model, `loop` reads lines, `commands` are what begins with a slash, `session` is the conversation,
`answer` one answer as it comes, `screen` what it looks like.
"""
