"""The chat templates of models: Jinja templates, rendered in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Final, NoReturn

from jinja2 import FunctionLoader, Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from coa.errors import TokenizerError
from coa.trajectory import Message

PLAIN: Final = "{% for message in messages %}{{ message['content'] }}\n\n{% endfor %}"
"""For base models, which have no template: the messages, with a blank line after each."""


_HINT: Final = "correct chat_template.jinja or `chat_template` in tokenizer_config.json of the model"
_CONVERSATION_HINT: Final = (
    "begin the conversation with a user message and let user and assistant take turns, as many templates demand"
)


class ChatTemplate:
    """`render` gives the prompt up to where the model begins to write."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source or PLAIN
        self._special_tokens = special_tokens

    def render(self, messages: Sequence[Message]) -> str:
        rows, template = [message.model_dump() for message in messages], self._template
        try:
            return template.render(messages=rows, add_generation_prompt=True, **self._special_tokens)
        except Exception as error:  # a template is a program, and can fail in any way
            if len(messages) < 2 or messages[0].role != "system":
                said = str(error) if isinstance(error, TemplateError) else f"{type(error).__name__}: {error}"
                hint = _HINT if len(messages) < 3 else _CONVERSATION_HINT
                raise TokenizerError(f"the model's chat template refuses the prompt: {said}", hint=hint) from error
        # Some templates refuse a system message; its text then comes before that of the user.
        system, first, *rest = messages
        if first.role != "user":
            return self.render([system.model_copy(update={"role": "user"}), first, *rest])
        return self.render([first.model_copy(update={"content": f"{system.content}\n\n{first.content}"}), *rest])

    @cached_property
    def _template(self) -> Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], loader=FunctionLoader(_refuse_file)
        )
        environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            return environment.from_string(self.source)
        except TemplateError as error:
            raise TokenizerError(f"the model's chat template cannot be read: {error}", hint=_HINT) from error


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _refuse_file(name: str) -> NoReturn:
    raise TemplateError(f"it includes {name!r}, but a template cannot read other files")
