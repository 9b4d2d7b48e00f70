"""From a flat list of recorded model calls to team runs: `reader.py` is the way in, and describes the steps."""
