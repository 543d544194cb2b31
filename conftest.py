"""Settings of every test: no backtrace children, tiny models from one cache, quiet threads."""

from __future__ import annotations

import os
import signal

import hypothesis

# Children that a debugger spawns for a backtrace can hang an aborting process.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
# With OpenMP, threads that spin make tiny models a hundred times slower on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A shell that starts the tests in the background lets them ignore Ctrl-C, which some of them send.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# How long an example takes says how busy the machine is.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")
# The processes that tests start would otherwise compile this package anew, each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = ["tests.tiers"]
