"""A world small enough to be learnt in seconds: one token a word, one tool, and a task that needs it.

The question is a word; the tool says another word for it; that one is the answer. Which word the tool says is new each
time, so it has to be copied.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from coa.models.chat_template import ChatTemplate
from coa.models.tokenizer import TextTokenizer
from coa.tools import Observation
from coa.trajectory import Message, Step, Task, Trajectory, observation
from support.tokenizers import SPECIALS, TEMPLATE
from support.tools import FakeTool

WORDS = [f"w{number}" for number in range(24)]
_TAGS = [
    "think",
    "plan",
    "web_search",
    "crawl_page",
    "code",
    "reflection",
    "suggested_answer",
    "double_check",
    "answer",
]


def word_tokenizer() -> TextTokenizer:
    tags = [f"<{slash}{tag}>" for tag in [*_TAGS, "observation"] for slash in ("", "/")]
    vocabulary = ["<unk>", *SPECIALS, "\n", " ", "user", "assistant", "system", *tags, *WORDS]
    fast = FastTokenizer(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token="<unk>"))
    fast.add_special_tokens(SPECIALS)
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(r"<[^>]*>|\s|[^<>\s]+"), "isolated")
    fast.decoder = decoders.Fuse()
    return TextTokenizer(
        fast,
        ChatTemplate(TEMPLATE, {}),
        end_of_turn=fast.token_to_id("<|im_end|>"),
        settings={"eos_token": "<|im_end|>"},
    )


def word_model(folder: Path, *, width: int = 64, seed: int = 0, key_heads: int = 2) -> Path:
    """A model folder with random weights."""
    torch.manual_seed(seed)
    tokenizer = word_tokenizer()
    config = LlamaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        max_position_embeddings=256,
        eos_token_id=tokenizer.end_of_turn,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def copying(count: int, seed: int = 0) -> list[Trajectory]:
    rng = random.Random(seed)
    return [_question_of_its_own(trajectory(f"copy-{seed}-{n}", *rng.choices(WORDS, k=2))) for n in range(count)]


def _question_of_its_own(copied: Trajectory) -> Trajectory:
    """A word is asked again and again, with another answer; what is shown stays the word."""
    task = copied.task.model_copy(update={"question": f"{copied.task.question} in {copied.task.id}"})
    return copied.model_copy(update={"task": task})


def trajectory(task_id: str, asked: str, said: str) -> Trajectory:
    return Trajectory(
        task=Task(id=task_id, question=asked, answer=said),
        profile="nano",
        steps=(Step(agent="web_search", text=asked), observation(said), Step(agent="answer", text=said)),
        prompt=(Message(role="user", content=asked),),
    )


class Dictionary(FakeTool):
    """The tool for some tasks: what it says to a word is what their answer is."""

    def __init__(self, trajectories: Sequence[Trajectory]) -> None:
        said = {t.steps[0].text: t.task.answer[0] for t in trajectories}
        super().__init__(lambda arguments: Observation(said.get(str(arguments["text"]), "w0")))
