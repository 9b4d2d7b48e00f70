"""Pages from the web, fetched so that no page and no model can make this machine talk to its own network."""
