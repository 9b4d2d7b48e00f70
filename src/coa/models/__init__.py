"""Language models: servers, weights in this process, and fixed replies for tests."""
