"""The markup of the `qwen3` reasoning and the `qwen3_coder` tool calls."""

from serve.chat.tags import MORE, NO, Named, Verdict, after_blanks, literal, named, one_of

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"


def opener(text: str, at: int) -> Named | Verdict:
    """The beginning of a call, up to the function's name: `<tool_call>`, blanks, `<function=NAME>`."""
    end = literal(text, at, CALL)
    end = end if isinstance(end, Verdict) else after_blanks(text, end)
    return end if isinstance(end, Verdict) else named(text, end, FUNCTION)


def end_of_value(text: str, at: int, pending: list[str], final: bool) -> int | Verdict:
    """Whether a parameter's value ends at `at`: the place after its end tag, or of the markup that ends it.

    Values are often code, and code may hold these very tags. An end tag therefore counts only where the markup goes on
    behind it: `</parameter>` before any other tag, `</function>` before `</tool_call>` or the next function or call,
    `</tool_call>` before the next call, each also where the text ends. Where an end tag was forgotten,
    `<parameter=KEY>` ends the value if the function has a parameter KEY that was not given yet (`pending`).
    """
    for tag, followers, consumed in (
        (END_PARAMETER, (PARAMETER, END_FUNCTION, END_CALL, CALL, FUNCTION), True),
        (END_FUNCTION, (END_CALL, CALL, FUNCTION), False),
        (END_CALL, (CALL,), False),
    ):
        end = literal(text, at, tag)
        if end is NO:
            continue
        if isinstance(end, Verdict):
            return NO if final else end
        behind = after_blanks(text, end)
        follows = behind if isinstance(behind, Verdict) else one_of(text, behind, followers)
        if isinstance(follows, Verdict) and not (final and follows is MORE):
            return follows
        return end if consumed else at
    begins = one_of(text, at, [f"{PARAMETER}{key}>" for key in pending])
    if isinstance(begins, Verdict):
        return NO if final else begins
    return at
