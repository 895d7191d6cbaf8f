"""Ranks that Ray places on a cluster of this machine: the same answers, actors that Ray restarts, and carriers that conform."""

from __future__ import annotations

import socket
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed import ray_workers
from tensorlogic.runtime.distributed.messages import KeptMessage
from tensorlogic.testing import check_carrier

DEVICES = [tl.Device.CPU(0), tl.Device.CPU(1)]


def graph():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 6), "float32"), b.input("w", (6, 9), "float32")
    h = b.relu(x @ w)
    return b.build(y=h, total=b.sum(h), most=b.max(h, axis=0))


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(tl.BackendError, match=r"(?s)not installed.*pip install 'tensorlogic-infer\[ray\]'"):
        tl.Executor().execute_distributed(graph(), given(), tl.DistributedConfig(DEVICES, "ray"))


def test_an_address_is_that_of_a_ray_cluster():
    with pytest.raises(tl.InputError, match="address is that of a Ray cluster"):
        tl.DistributedConfig(DEVICES, address="host:6379")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server):
    return "{}:{}".format(*server.getsockname())


def test_where_nobody_answers_there_is_no_cluster(listener):
    address = address_of(listener)
    listener.close()
    with pytest.raises(tl.BackendError, match=f"no Ray cluster at '{address}': .*refused") as found:
        ray_workers.check_cluster(address)
    assert found.value.diagnostic.code == "E347"


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400", b"", None])
def test_something_else_that_answers_is_no_cluster(monkeypatch, listener, greeting):
    monkeypatch.setattr(ray_workers, "HEARD", 0.3)

    def greet():
        with listener.accept()[0] as way:
            if greeting is None:  # it waits for the caller
                way.recv(1)
            else:
                way.sendall(greeting)

    thread = threading.Thread(target=greet)
    thread.start()
    with pytest.raises(tl.BackendError, match=r"no Ray cluster at .*(something else answers|timed out|reset)"):
        ray_workers.check_cluster(address_of(listener))
    thread.join()


def test_ray_is_not_asked_for_a_cluster_that_does_not_answer(monkeypatch, listener):
    def forever(**_):
        raise AssertionError("it would ask for many minutes")

    util = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    ray = SimpleNamespace(is_initialized=lambda: False, init=forever, util=util)
    monkeypatch.setattr(ray_workers, "ray_module", lambda: ray)
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(tl.BackendError, match="no Ray cluster at"):
        ray_workers.connect(f"localhost:{port}", 2)


def test_without_an_address_a_cluster_that_runs_here_is_left_alone(monkeypatch):
    asked = {}
    monkeypatch.setattr(
        ray_workers, "ray_module", lambda: SimpleNamespace(is_initialized=lambda: False, init=asked.update)
    )
    assert ray_workers.connect(None, 2)
    assert asked["address"] == "local" and asked["num_cpus"] == 2


def test_a_cluster_that_is_gone_is_left_before_ray_ends_this_process(monkeypatch, listener):
    ray = SimpleNamespace(entered=True, is_initialized=lambda: ray.entered)
    ray.shutdown = lambda: setattr(ray, "entered", False)
    monkeypatch.setattr(ray_workers, "ray_module", lambda: ray)
    workers = object.__new__(ray_workers.RayWorkers)
    workers._entered, workers._cluster, workers._actors, workers._token = True, address_of(listener), ["actor"], "ours"
    listener.close()
    workers._restart()
    assert not ray.entered and not workers._token
    assert not workers.fits(tl.Executor(), DEVICES, 60, None)  # the next run goes to the cluster anew
    workers.close()


def given(rows=11):
    rng = np.random.default_rng(rows)
    return {"x": rng.normal(size=(rows, 6)).astype("f4"), "w": rng.normal(size=(6, 9)).astype("f4")}


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    ray = pytest.importorskip("ray", reason="pip install 'tensorlogic-infer[ray]' installs Ray")
    from tensorlogic.runtime.distributed.ray_workers import connect

    assert connect(None, 4)
    yield ray
    ray.shutdown()


@pytest.fixture
def executor(cluster):
    executor = tl.Executor()
    yield executor
    executor.distributed.close()
    assert cluster.is_initialized()  # it was there before


def test_the_same_answers_and_actors_that_are_restarted(cluster, executor):
    config = tl.DistributedConfig(DEVICES, "ray", timeout=60)
    for rows in (11, 11, 8):
        outputs = executor.execute_distributed(graph(), given(rows), config)
        for name, value in tl.Executor().execute(graph(), given(rows)).items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6)
    workers = executor.distributed.workers
    answer, _ = cluster.get(workers._actors[0].run.remote("guess", (2, 1, 1), {}, [], [], KeptMessage(), []))
    assert answer.failure.code == "E397"  # work needs the token of the group
    cluster.kill(workers._actors[1], no_restart=False)
    with pytest.raises(tl.ExecutionError, match="the process of rank 1 ended") as found:
        while True:  # Ray may let a call that was under way come to its end
            executor.execute_distributed(graph(), given(), config)
    assert found.value.diagnostic.code == "E382"
    outputs = executor.execute_distributed(graph(), given(), config)
    assert executor.distributed.workers is workers  # they are the same, and Ray restarted them
    np.testing.assert_allclose(outputs["y"], tl.Executor().execute(graph(), given())["y"], rtol=1e-5, atol=1e-6)
    stream = executor.execute_stream(graph(), {"x": given(20)["x"]}, inputs={"w": given(20)["w"]}, distributed=config)
    np.testing.assert_allclose(stream.result()["total"], tl.Executor().execute(graph(), given(20))["total"], rtol=1e-5)


def test_its_carrier_conforms(cluster):
    class Rank:
        def __init__(self, rank, address):
            from tensorlogic.runtime.distributed.torch_ways import join_world

            self.way = join_world(rank, 2, address, 60, "kit")

        def check(self):
            report = check_carrier(self.way)
            return "" if report.passed else str(report)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
    ranks = [cluster.remote(num_cpus=1)(Rank).remote(rank, address) for rank in range(2)]
    assert cluster.get([rank.check.remote() for rank in ranks], timeout=120) == ["", ""]
    for rank in ranks:
        cluster.kill(rank)
