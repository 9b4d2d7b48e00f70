"""For all tests: what takes long on a busy machine is not wrong."""

from hypothesis import HealthCheck, settings

settings.register_profile("coa", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("coa")
