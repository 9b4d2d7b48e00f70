"""verl without a GPU: for tests, for trying the distributed path on a laptop, and for models that are tiny.

verl has no CPU platform and no engine that samples on a CPU. Both can be added from outside (`platform.py`,
`rollout.py`, `weights.py`); two places in verl have to be patched, which `plugin.py` does. Nothing here is used where
there are GPUs.
"""
