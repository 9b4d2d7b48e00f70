"""Tasks + model -> scored trajectories and a report: benchmarks, metrics with intervals, what it cost, comparison."""
