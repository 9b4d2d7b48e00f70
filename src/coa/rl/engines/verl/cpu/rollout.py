"""coa's own engine as a rollout engine of verl: a Ray actor for each replica, weights through Ray's object store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

POLL_S: Final = 0.02


class TokenActor:
    """A `LocalModel` behind verl's token interface."""

    def __init__(self, path: str, rows: int, kv_gb: float, temperature: float) -> None:
        import torch

        from coa.models.local.model import LocalModel, load_weights

        torch.set_num_threads(1)
        self._weights, tokenizer = load_weights(path, dtype=torch.float32, device="cpu")
        self._weights.requires_grad_(False)
        self._model = LocalModel(
            self._weights, tokenizer, name=path, max_rows=rows, kv_bytes=int(kv_gb * (1 << 30)), temperature=temperature
        )
        self._temperature = temperature
        self._version = self._busy = 0
        self._held = False

    async def generate(
        self, prompt_ids: Sequence[int], sampling_params: Mapping[str, Any], request_id: str, **_: Any
    ) -> TokenOutput:
        from coa.models.base import Context, Sampling

        asked = sampling_params
        # The engine's distribution is the one at the training temperature; 0 still means greedy.
        sampling = Sampling(
            temperature=min(asked.get("temperature", 1.0) / self._temperature, 1.0),
            top_p=asked.get("top_p", 1.0),
            top_k=max(asked.get("top_k", 0), 0),
            max_tokens=asked["max_tokens"],
            seed=asked.get("seed"),
        )
        while self._held:
            await asyncio.sleep(POLL_S)
        self._busy += 1
        try:
            written = await self._model.generate(
                Context((), "", list(prompt_ids)), stop=tuple(asked.get("stop") or ()), sampling=sampling
            )
        finally:
            self._busy -= 1
        assert written.tokens is not None
        ids, logprobs = list(written.tokens.ids), list(written.tokens.logprobs or ())
        if written.ended is not None:
            ids.append(written.ended[0])
            logprobs.append(written.ended[1])
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            stop_reason="completed",
            num_preempted=0,
            extra_fields={"global_steps": self._version},
        )

    async def load(self, weights: Mapping[str, Any], version: int | None) -> None:
        """Weights by name, as numpy arrays. Tied weights come once."""
        import torch

        own = dict(self._weights.named_parameters())
        if missing := own.keys() - weights.keys():
            raise KeyError(f"the trainer sent no weights for {sorted(missing)[0]} and {len(missing) - 1} more")
        with torch.no_grad():
            for name, weight in own.items():
                weight.copy_(torch.from_numpy(weights[name].copy()))
        self._model.forget()
        self._version = version or 0

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Hold new calls and wait until those under way have ended: they are short here."""
        self._held = True
        while self._busy:
            await asyncio.sleep(POLL_S)

    async def resume_generation(self) -> None:
        self._held = False

    async def clear_kv_cache(self) -> None:
        self._model.forget()

    # There is no memory of a GPU to give back.
    async def wake_up(self) -> None: ...
    async def sleep(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **_: Any) -> None: ...
    async def stop_profile(self) -> None: ...


def actor_name(replica: int) -> str:
    return f"coa-rollout-{replica}"


class LocalReplica(RolloutReplica):  # type: ignore[misc]
    async def launch_servers(self) -> None:
        name, config = actor_name(self.replica_rank), self.config
        rows, kv_gb = config.max_num_seqs, float(os.environ.get("COA_KV_CACHE_GB", "1"))
        actor = ray.remote(TokenActor).options(name=name, max_concurrency=self.max_concurrency, num_cpus=0)
        server = actor.remote(self.model_config.path, rows, kv_gb, config.temperature)
        await server.wake_up.remote()  # wait until it is there
        self.servers, self._server_handle, self._server_address = [server], server, name


class WeightSender(BaseRollout):  # type: ignore[misc]
    """In each process that trains. The first process of a replica hands the weights to the replica's engine."""

    def __init__(
        self, config: Any, model_config: Any, device_mesh: Any, *args: Any, replica_rank: int | None = None, **rest: Any
    ) -> None:
        super().__init__(config, model_config, device_mesh, *args, **rest)
        rank = int(os.environ.get("RANK", "0"))
        size = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        self.replica_rank, self.is_leader_rank = rank // size, rank % size == 0
        if replica_rank is not None:  # the process of a replica that does not train
            self.replica_rank, self.is_leader_rank = replica_rank, True

    async def resume(self, tags: Any) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Any, wire_format: str = "named_tensors", global_steps: int | None = None, **_: Any
    ) -> None:
        assert wire_format == "named_tensors", wire_format
        # All processes take part in gathering a weight, so all of them go through the list.
        gathered = {
            name: weight.detach().float().cpu().numpy().copy() async for name, weight in ensure_async_iterator(weights)
        }
        if self.is_leader_rank:
            server = ray.get_actor(actor_name(self.replica_rank))
            await server.load.remote(ray.put(gathered), global_steps)
