"""Lines that begin with a slash."""

from collections.abc import Callable, Iterator

from serve.chat_cli.session import Session

HELP = """\
/reset            forget the conversation
/system TEXT      set the system prompt; without TEXT, remove it
/think on|off     think before answering, where the model can
/stats            acceptance and speed of this session
/help             this text
//TEXT            a message that begins with a slash
A line that ends with \\ goes on in the next one. Ctrl-C stops an answer, Ctrl-D leaves."""


def run(line: str, session: Session) -> Iterator[str]:
    """Does what the line asks for; the lines to show."""
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        yield f"unknown command {name}; /help lists the commands, and //… sends a message that begins with a slash"
    else:
        yield from command(session, rest.strip())


def _reset(session: Session, rest: str) -> Iterator[str]:
    session.reset()
    yield "the conversation starts anew"


def _system(session: Session, rest: str) -> Iterator[str]:
    session.system = rest or None
    yield "the system prompt is set" if rest else "there is no system prompt now"


def _think(session: Session, rest: str) -> Iterator[str]:
    if rest not in ("on", "off"):
        yield f"got {rest!r}, wanted /think on or /think off; it is {'on' if session.thinking else 'off'}"
        return
    session.thinking = rest == "on"
    yield f"thinking is {rest}"


def _stats(session: Session, rest: str) -> Iterator[str]:
    answers = session.answers
    yield f"answers: {len(answers)}, of {sum(answer.tokens for answer in answers)} tokens"
    seconds = sum(answer.seconds for answer in answers)
    if seconds > 0:
        yield f"{sum(answer.timed_tokens for answer in answers) / seconds:.1f} tokens/s after the first tokens"
    accepted = [count for answer in answers for count in answer.accepted]
    if accepted:
        yield f"{1 + sum(accepted) / len(accepted):.2f} tokens per cycle over {len(accepted)} cycles"
        counts = ", ".join(f"{count}: {accepted.count(count)}" for count in sorted(set(accepted)))
        yield f"cycles by accepted proposals: {counts}"


def _help(session: Session, rest: str) -> Iterator[str]:
    yield from HELP.splitlines()


COMMANDS: dict[str, Callable[[Session, str], Iterator[str]]] = {
    "/reset": _reset,
    "/system": _system,
    "/think": _think,
    "/stats": _stats,
    "/help": _help,
}
