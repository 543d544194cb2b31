"""The simulation of clusters: what has to be true of it whatever the constants are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster_load import Workload, synthetic_agents
from benchmarks.cluster_model import ROUTINGS, Cluster, Constants, constants_of, described
from benchmarks.cluster_model import simulate as simulated


@pytest.fixture(scope="module")
def workload() -> Workload:
    return Workload.made(synthetic_agents(3, 8000), 40, seconds=20.0)


COSTS = Constants()


@pytest.mark.parametrize("routing", [*ROUTINGS])
def test_every_request_is_answered(workload: Workload, routing: str) -> None:
    result = simulated(workload, Cluster(3, routing), COSTS)
    assert len(result.firsts) == workload.requests
    assert min(result.firsts) >= 0.75 * COSTS.overhead


def test_one_replica_does_the_same_whatever_routes(workload: Workload) -> None:
    results = [simulated(workload, Cluster(1, routing), COSTS) for routing in ROUTINGS]
    assert len({result.evaluated for result in results}) == 1
    assert len({result.first_token(0.95) for result in results}) == 1


def test_it_is_the_same_each_time(workload: Workload) -> None:
    one, other = (simulated(workload, Cluster(3, "default"), COSTS) for _ in range(2))
    assert one.firsts == other.firsts


def test_sessions_stay_and_little_is_evaluated_twice(workload: Workload) -> None:
    alone = simulated(workload, Cluster(1), COSTS)
    prefix = simulated(workload, Cluster(3), COSTS)
    default = simulated(workload, Cluster(3, "default"), COSTS)
    assert prefix.stays >= 0.95
    assert prefix.evaluated <= 1.1 * alone.evaluated
    assert default.stays < 0.6
    assert default.evaluated > 1.5 * prefix.evaluated
    assert prefix.first_token(0.95) < default.first_token(0.95)


def test_a_smaller_memory_holds_less(workload: Workload) -> None:
    rates = [
        simulated(workload, Cluster(3, memory=size), COSTS).hit_rate for size in (500, 4000, 64_000)
    ]
    assert rates[0] < rates[1] < rates[2]


def test_who_finds_no_cells_waits_and_is_answered() -> None:
    agents = Workload.made(synthetic_agents(3, 8000), 20, seconds=10.0, agent_pause=0.1)
    many, few, none = (simulated(agents, Cluster(1, cells=n), COSTS) for n in (0, 5000, 1))
    assert len(many.firsts) == len(few.firsts) == len(none.firsts) == agents.requests
    assert many.first_token(0.95) < few.first_token(0.95) < none.first_token(0.95)
    assert simulated(agents, Cluster(1, cells=1 << 30), COSTS).firsts == many.firsts


def test_shared_processors_take_longer(workload: Workload) -> None:
    own = simulated(workload, Cluster(3), COSTS)
    shared = simulated(workload, Cluster(3, processors=0.2), COSTS)
    assert shared.first_token(0.95) > own.first_token(0.95)
    crowded = replace(COSTS, beside=1.5)
    slower = simulated(workload, Cluster(3, processors=0.2), crowded)
    assert slower.first_token(0.95) > shared.first_token(0.95)
    assert simulated(workload, Cluster(3), crowded).firsts == own.firsts


def test_replicas_that_die_lose_nothing(workload: Workload) -> None:
    deaths = [5.0, 10.0, 15.0]
    result = simulated(workload, Cluster(3, failures=deaths), COSTS)
    assert len(result.firsts) >= workload.requests
    alone = simulated(workload, Cluster(1, failures=deaths, restart=2.0), COSTS)
    assert len(alone.firsts) >= workload.requests
    undisturbed = simulated(workload, Cluster(3), COSTS)
    stored = simulated(workload, Cluster(3, failures=deaths, store=True), COSTS)
    assert stored.evaluated <= undisturbed.evaluated < result.evaluated


def test_constants_go_into_a_file_and_come_back() -> None:
    constants = Constants(overhead=0.5, agent=(3.0, 0.25))
    assert constants_of(described(constants)) == constants
