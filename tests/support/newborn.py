"""A model that nobody has taught anything, and a task that it can come upon by chance: all there is is the reward.

A token is a whole call or a whole answer, so that a run can be two tokens long. The question does not tell the answer;
the tool does, and what it says has to be repeated. So there are three things to find out: to call, then to answer, and
to look at what was said.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from coa.models.chat_template import ChatTemplate
from coa.models.tokenizer import TextTokenizer
from coa.tools import Observation
from coa.trajectory import Message
from support.tools import FakeTool

QUERIES, ANSWERS, QUESTIONS, NOTHING = ["k0", "k1"], ["a0", "a1", "a2"], ["q0", "q1"], "none"
CALLS = [f"<web_search>{query}</web_search>" for query in QUERIES]
REPLIES = [f"<answer>{answer}</answer>" for answer in [*ANSWERS, NOTHING, *QUESTIONS]]
"""Half of them are never right."""
_SPECIALS = ["<|im_end|>"]
_PROFILE = 'extends = "nano"\nname = "newborn"\nstart = ["web_search"]\n'


def newborn(folder: Path, *, seed: int) -> Path:
    """A model folder with random weights."""
    vocabulary = ["<unk>", *_SPECIALS, "\n", "<observation>", "</observation>", NOTHING, *ANSWERS, *QUESTIONS]
    vocabulary += [*CALLS, *REPLIES]
    fast = FastTokenizer(models.WordLevel({word: at for at, word in enumerate(vocabulary)}, unk_token="<unk>"))
    fast.add_special_tokens(_SPECIALS)
    whole = r"<(?:web_search|answer)>\w+</(?:web_search|answer)>"
    fast.pre_tokenizer = pre_tokenizers.Split(Regex(whole + r"|<[^>]*>|\s|[^<>\s]+"), "isolated")
    fast.decoder = decoders.Fuse()
    template = ChatTemplate("{% for message in messages %}{{ message['content'] }}\n{% endfor %}", {})
    tokenizer = TextTokenizer(
        fast, template, end_of_turn=fast.token_to_id("<|im_end|>"), settings={"eos_token": "<|im_end|>"}
    )
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=tokenizer.end_of_turn,
        bos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
        initializer_range=0.05,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


class Knowing(FakeTool):
    """Says the answer to whoever asks."""

    def __init__(self) -> None:
        super().__init__(lambda arguments: "")

    async def call(self, arguments, context):  # type: ignore[no-untyped-def]
        return Observation(context.task.answer[0])


def settings(folder: Path, *, seed: int) -> dict[str, object]:
    tasks, profile = folder / "tasks.jsonl", folder / "newborn.toml"
    profile.write_text(_PROFILE)
    rows = [
        {
            "id": f"{question}-{answer}",
            "question": question,
            "answer": answer,
            "prompt": [Message(role="user", content=question).model_dump()],
        }
        for question in QUESTIONS
        for answer in ANSWERS
    ]
    tasks.write_text("\n".join(json.dumps(row) for row in rows))
    return {
        "model": str(newborn(folder / "random", seed=seed)),
        "tasks": str(tasks),
        "use_task_prompts": True,
        "profile": str(profile),
        "reward": {"format_weight": 0.2},
        "filter_groups_metric": "reward",  # at first nothing but the form differs
        "max_steps": 30,
        "train_batch_size": 6,
        "gen_batch_size": 6,
        "max_num_gen_batches": 1,
        "min_groups": 1,
        "num_generations": 24,
        "num_mini_batches": 3,
        "lr": 2e-3,
        "weight_decay": 0.0,
        "adam_beta2": 0.99,
        "max_completion_length": 6,
        "max_model_len": 120,
        "max_turn_tokens": 2,
        "overlong_buffer_ratio": 0.0,
        "kl_coef": 0.03,  # or an answer that was unlucky at first is never tried again
        "report_to": [],
        "save_steps": 1000,
        "guards": {"max_idle_steps": 50},
        "seed": seed,
    }


def knowing() -> Knowing:
    """For other processes, which open the tool by this name."""
    return Knowing()
