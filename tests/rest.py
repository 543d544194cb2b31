"""What is left in a model when its callers have gone."""

from __future__ import annotations

from llama_py import Llama


def in_flight(llm: Llama) -> int:
    """Requests in flight, after what callers have posted until now."""
    driver = llm.runtime.loaded.driver
    driver.run(lambda: None)
    return driver.in_flight
