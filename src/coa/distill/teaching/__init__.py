"""Running a team over many tasks, each run recorded in its own file."""
