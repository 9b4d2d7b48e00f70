"""Pages from the web, fetched so that no page and no model can make this machine access its private network."""
