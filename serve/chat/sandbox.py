"""The Jinja environment in which a checkpoint's template runs: no code of ours to reach, and no endless work."""

import datetime
import json
from collections.abc import Callable, Sized
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from serve.chat.budget import Budget, BudgetError, Limits

NUMBER_BITS = 4096


class _Sandbox(ImmutableSandboxedEnvironment):
    """What templates are written for: blocks leave no blank lines, the functions below exist."""

    intercepted_binops = frozenset(("*", "**", "+"))

    def __init__(self, budget: Budget):
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        self.step = budget.step
        self._budget = budget
        self.filters["tojson"] = _tojson
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "namespace": _Namespace,
            "dict": lambda *arguments, **items: dict(*arguments, **items),
        }

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuses products, powers and sums of a size that no prompt has."""
        if operator == "**" and not (isinstance(left, float) or isinstance(right, float)):
            self._check_bits(int(left).bit_length() * abs(int(right)))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            self._check_bits(left.bit_length() + right.bit_length())
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(many, Sized) and isinstance(times, int):
                    self._budget.check_size(len(many) * times)
        elif isinstance(left, Sized) and isinstance(right, Sized):
            self._budget.check_size(len(left) + len(right))
        return super().call_binop(context, operator, left, right)

    def _check_bits(self, bits: int) -> None:
        if bits > NUMBER_BITS:
            raise BudgetError(f"a number of more than {NUMBER_BITS} bits")


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; here its body is only written."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """A namespace whose attributes cannot be Python's own."""

    def __init__(self, *arguments: Any, **items: Any):
        attributes = dict(*arguments, **items)
        for name in attributes:
            _check_attribute(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def compiled(source: str, limits: Limits) -> Callable[[dict[str, Any]], str]:
    """The template as a function from its variables to the text.

    Compiling raises jinja2.TemplateSyntaxError. The function raises BudgetError, jinja2.TemplateError, and whatever
    else the template's expressions raise.
    """
    budget = Budget(limits)
    environment = _Sandbox(budget)
    tree = environment.parse(source)
    for node in tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock)):
        step = nodes.Call(nodes.EnvironmentAttribute("step"), [], [], None, None, lineno=node.lineno)
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
    template = environment.from_string(tree)

    def render(variables: dict[str, Any]) -> str:
        budget.begin()
        parts, size = [], 0
        for part in template.generate(variables):
            size += len(part)
            budget.check_size(size)
            parts.append(part)
        return "".join(parts)

    return render


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON for a prompt: no HTML escapes, characters outside ASCII as they are."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> str:
    raise TemplateError(str(message))


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}: names that begin with an underscore are Python's")
