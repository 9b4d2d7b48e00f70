"""RL on verl and Ray: the same tasks, tools, profile and rewards as the local engine, on any number of GPUs.

verl trains and moves weights, Ray places processes, vLLM or SGLang samples tokens. What happens between a task and its
reward is coa's own: verl calls our agent loop (`loop.py`), which runs the chain with the real tools and returns token
ids, mask, log-probabilities and reward. verl is used as it is, through the extension points that it offers.

| file | what it holds |
|---|---|
| `driver.py` | the run from the user's side: write the files, start the child process, follow it, merge the model |
| `settings.py` | the settings of `coa rl` as settings of verl |
| `checks.py` | what verl cannot do, refused before anything starts |
| `dataset.py` | tasks as the rows that verl reads |
| `launch.py` | the child process: it starts or joins Ray, checks the nodes, and runs the trainer |
| `cluster.py`, `nodes.py`, `needs.py` | starting or joining Ray; trying what a run needs on every node |
| `trainer.py` | verl's trainer, with our files and guards |
| `loop.py` | one attempt, in a Ray actor |
| `collector.py` | the Ray actor to which attempts are sent |
| `signatures.py` | the names of verl that all this relies on |
| `cpu/` | what lets all of it run without a GPU, for tests and for small models |

Only `launch`, `cluster`, `nodes`, `trainer`, `loop`, `collector`, `signatures` and `cpu` import verl or Ray.
"""
