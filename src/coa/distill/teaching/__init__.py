"""Running a team over many tasks, each run recorded in a file of its own."""
