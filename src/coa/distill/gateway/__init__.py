"""The recording gateway: a proxy on loopback that any team can be pointed at by its base URL."""
