"""The policy of a batcher in simulated time: every order of events for a few requests, against a model that recomputes all from scratch."""

from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorlogic import BatcherConfig, BatchingStrategy, Priority
from tensorlogic.serve.batch_queue import DONE, BatchQueue, Request

LOW, NORMAL, HIGH, CRITICAL = Priority
LATENCY, THROUGHPUT, ADAPTIVE = BatchingStrategy


class Model:
    """What the policy should do, by lists that are sorted anew each time; it asks the queue only for its estimate of a batch's time."""

    def __init__(self, config, pace):
        self.config, self.pace = config, pace
        self.waiting, self.running = [], []

    def add(self, request):
        if len(self.waiting) >= self.config.max_queue:
            return False
        self.waiting.append(request)
        return True

    def take(self, now):
        late = [r for r in (*self.waiting, *(r for b in self.running for r in b)) if r.deadline <= now]
        self.waiting = [r for r in self.waiting if r not in late]
        self.running = [[r for r in b if r not in late] for b in self.running]
        if len(self.running) >= self.config.workers or not self.waiting:
            return [], late
        first = min(self.waiting, key=lambda r: (r.deadline, r.number))
        ready = []
        for kind in {r.kind for r in self.waiting}:
            own = [r for r in self.waiting if r.kind == kind]
            wait = self.pace.wait
            due = min(r.arrived for r in own) + wait
            if first.kind == kind:
                due = min(due, first.deadline - self.pace.estimate(len(own)))
            if len(own) >= self.config.max_batch or due <= now:
                ready.append(own)
        if not ready:
            return [], late
        own = min(ready, key=lambda rs: min(self.rank(r) for r in rs))
        batch = sorted(own, key=self.rank)[: self.config.max_batch]
        self.waiting = [r for r in self.waiting if r not in batch]
        self.running.append(list(batch))
        return batch, late

    def rank(self, r):
        return r.arrived - r.priority * self.config.aging, -r.priority, r.number

    def cancel(self, request):
        self.waiting = [r for r in self.waiting if r is not request]
        self.running = [[r for r in b if r is not request] for b in self.running]


class Run:
    """One history of the policy beside the model."""

    def __init__(self, config, plans):
        self.queue = BatchQueue(config)
        self.model = Model(config, self.queue.pace)
        self.plans, self.config = plans, config
        self.requests, self.batches = [], []
        self.outcomes, self.now = {}, 0.0

    def events(self, ticks, cancels):
        """Return what can happen now."""
        found = []
        if len(self.requests) < len(self.plans):
            found.append(("arrive",))
        if self.batches:
            found += [("finish", n) for n in range(len(self.batches))]
        if self.now < ticks:
            found.append(("tick",))
        gone = sum(o == "cancelled" for o in self.outcomes.values())
        if gone < cancels:
            found += [("cancel", n) for n, r in enumerate(self.requests) if r not in self.outcomes]
        return found

    def settle(self, request, outcome):
        assert request not in self.outcomes, "a second outcome"
        assert request.state == DONE or outcome == "refused"
        self.outcomes[request] = outcome

    def step(self, event):
        match event:
            case ("arrive",):
                kind, priority, deadline = self.plans[len(self.requests)]
                request = Request(kind, None, priority, self.now + deadline)
                self.requests.append(request)
                refused = self.queue.add(request, self.now)
                assert (refused is None) == self.model.add(request)
                if refused is not None:
                    assert refused > 0
                    self.settle(request, "refused")
            case ("tick",):
                self.now += 1.0
            case ("finish", n):
                batch = self.batches.pop(n)
                for request in self.queue.finish(batch, self.now):
                    self.settle(request, "answered")
                del self.model.running[n]
            case ("cancel", n):
                request = self.requests[n]
                assert self.queue.cancel(request)
                assert not self.queue.cancel(request)
                self.model.cancel(request)
                self.settle(request, "cancelled")
        self.look()

    def look(self):
        """Ask for decisions until there are none, as those who carry the policy out do."""
        while True:
            batch, late, wake_at = self.queue.take(self.now)
            expected, expected_late = self.model.take(self.now)
            assert set(late) == set(expected_late)
            for request in late:
                assert request.deadline <= self.now
                self.settle(request, "late")
            assert (batch.requests if batch else []) == expected
            assert self.queue.waiting == len(self.model.waiting) <= self.config.max_queue
            assert wake_at > self.now or batch
            if batch is None:
                break
            self.check_batch(batch)
            self.batches.append(batch)
        if len(self.batches) < self.config.workers:
            for request in self.model.waiting:  # nobody waits past a deadline while nothing runs
                assert request.deadline - self.queue.pace.estimate(1) > self.now
                assert wake_at <= request.deadline

    def check_batch(self, batch):
        chosen = batch.requests
        assert len({r.kind for r in chosen}) == 1
        assert len(chosen) <= self.config.max_batch
        for left in self.model.waiting:
            for request in chosen:
                # who is overtaken came later, or is less urgent by more than the time between
                if left.kind == request.kind:
                    assert request.arrived <= left.arrived + (request.priority - left.priority) * self.config.aging

    def finish_all(self):
        """Let everything come to an end, and see that each request has an outcome."""
        for _ in range(8):
            while self.batches:
                self.step(("finish", 0))
            self.now += 1.0
            self.look()
        assert len(self.outcomes) == len(self.requests)
        assert not self.queue.waiting
        assert not self.queue.lines
        assert not self.queue.running


def histories(config, plans, ticks, cancels):
    """Go through every order of events; return how many there are."""
    count, pending = 0, [()]
    while pending:
        path = pending.pop()
        run = Run(config, plans)
        for event in path:
            run.step(event)
        following = run.events(ticks, cancels)
        pending += [(*path, event) for event in following]
        if len(run.requests) == len(plans):
            run.finish_all()
            count += 1
    return count


SAME = [("a", NORMAL, inf)] * 3
URGENT = [("a", LOW, inf), ("a", NORMAL, inf), ("a", CRITICAL, inf)]
DEADLINES = [("a", NORMAL, 2.0), ("a", HIGH, 1.0), ("a", LOW, inf)]
KINDS = [("a", LOW, inf), ("b", HIGH, 2.0), ("a", NORMAL, 1.0)]


@pytest.mark.parametrize("plans", [SAME, URGENT, DEADLINES, KINDS], ids=["same", "urgent", "deadlines", "kinds"])
@pytest.mark.parametrize(
    "config",
    [
        BatcherConfig(max_batch=2, max_queue=2, aging=1.5),
        BatcherConfig(max_batch=2, max_queue=2, aging=1.5, strategy=THROUGHPUT, max_wait=2.0),
        BatcherConfig(max_batch=3, max_queue=3, aging=0.0, max_wait=1.0, workers=2),
    ],
    ids=["latency", "throughput", "two workers"],
)
def test_every_order_of_events(config, plans):
    assert histories(config, plans, ticks=2, cancels=1) > 100


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    max_batch=st.integers(1, 4),
    max_queue=st.integers(1, 6),
    workers=st.integers(1, 3),
    wait=st.sampled_from([0.0, 1.0, 3.0]),
    aging=st.sampled_from([0.0, 0.5, 2.0]),
)
def test_long_histories(data, max_batch, max_queue, workers, wait, aging):
    config = BatcherConfig(max_batch=max_batch, max_queue=max_queue, workers=workers, max_wait=wait, aging=aging)
    request = st.tuples(st.sampled_from("abc"), st.sampled_from(Priority), st.sampled_from([inf, 0.0, 1.0, 2.0, 5.0]))
    run = Run(config, data.draw(st.lists(request, min_size=1, max_size=25)))
    for _ in range(60):
        events = run.events(ticks=40, cancels=10)
        if not events:
            break
        run.step(data.draw(st.sampled_from(events)))
    run.finish_all()


def simulate(config, cost, gaps, count=2000):
    """Run requests that come with gaps through one worker whose batches of n take cost(n) seconds; return latencies and sizes."""
    queue, now = BatchQueue(config), 0.0
    arrivals, latencies, sizes = iter(range(count)), [], []
    next_arrival, busy_until, batch = next(gaps), inf, None
    coming = next(arrivals, None)
    while coming is not None or queue.waiting or batch:
        found, _, wake_at = queue.take(now)
        if found:
            batch, busy_until = found, now + cost(len(found.requests))
            sizes.append(len(found.requests))
            continue
        now = min(next_arrival if coming is not None else inf, busy_until, wake_at if batch is None else inf)
        if batch and now == busy_until:
            latencies += [now - r.arrived for r in queue.finish(batch, now)]
            batch, busy_until = None, inf
        elif coming is not None and now == next_arrival:
            assert queue.add(Request("a"), now) is None
            coming, next_arrival = next(arrivals, None), now + next(gaps)
    return latencies, sizes, queue


def steady(gap):
    while True:
        yield gap


def test_no_request_starves_under_more_urgent_ones():
    config = BatcherConfig(max_batch=1, max_queue=10_000, aging=0.5)
    queue = BatchQueue(config)
    low = Request("a", priority=LOW)
    queue.add(low, 0.0)
    now, overtaken = 0.0, 0
    while low.state != DONE:
        queue.add(Request("a", priority=CRITICAL), now)  # one comes whenever one leaves
        batch = queue.take(now).batch
        now += 0.1
        overtaken += low not in batch.requests
        queue.finish(batch, now)
    assert 14 <= overtaken <= 16  # those that came within three times 0.5 s, and no more


def test_a_lonely_request_does_not_wait_for_company():
    for strategy in (LATENCY, ADAPTIVE):
        latencies, sizes, _ = simulate(BatcherConfig(strategy=strategy), lambda n: 0.001, steady(1.0), 50)
        assert max(latencies) < 0.0011
        assert set(sizes) == {1}


def test_throughput_fills_batches():
    config = BatcherConfig(strategy=THROUGHPUT, max_batch=8, max_wait=0.05)
    latencies, sizes, _ = simulate(config, lambda n: 0.001, steady(0.002), 800)
    assert sum(sizes) / len(sizes) > 7.5
    assert max(latencies) <= 0.052


@pytest.mark.parametrize("target", [0.01, 0.04])
def test_adaptive_learns_the_largest_batch_that_keeps_the_target(target):
    config = BatcherConfig(strategy=ADAPTIVE, target_latency=target, max_batch=512, max_queue=100_000)
    cost = lambda n: 0.002 + 0.0001 * n  # noqa: E731
    # too fast for single requests, not for batches
    latencies, sizes, _ = simulate(config, cost, steady(0.0003), 10_000)
    late = sum(t > target for t in latencies[2000:]) / len(latencies[2000:])
    assert late < 0.02
    assert max(sizes) > 8
    assert cost(max(sizes[-100:])) <= target / 2 + 0.001


def test_adaptive_follows_a_machine_that_becomes_slower_and_faster():
    pace = BatchQueue(BatcherConfig(strategy=ADAPTIVE, target_latency=0.02, max_batch=256)).pace
    for each in (0.0001, 0.0005, 0.0002):
        for _ in range(300):
            pace.finished(pace.limit, 0.001 + each * pace.limit, 0.01)
        assert 0.85 <= pace.limit / ((0.01 - 0.001) / each) <= 1.1
    for _ in range(5):
        before = pace.wait
        pace.finished(4, 0.003, 0.05)  # far too late
        assert pace.wait <= before / 2


def test_adaptive_serves_all_where_the_target_cannot_be_kept():
    """Small batches would serve too few, and the queue would grow for ever."""
    config = BatcherConfig(strategy=ADAPTIVE, target_latency=0.01, max_batch=512, max_queue=100_000)
    noise = iter(np.random.default_rng(0).normal(size=1_000_000) * 0.0005)
    cost = lambda n: 0.002 + 0.0001 * n + abs(next(noise))  # noqa: E731
    latencies, _, _ = simulate(config, cost, steady(0.00014), 20_000)
    assert max(latencies[-5000:]) < 0.05


def test_a_full_queue_says_when_to_come_back():
    queue = BatchQueue(BatcherConfig(max_batch=2, max_queue=4))
    for n in range(4):
        assert queue.add(Request("a"), float(n)) is None
    assert queue.add(Request("a"), 4.0) > 0  # nothing is known yet
    batch = queue.take(4.0).batch
    queue.finish(batch, 6.0)
    queue.take(6.0)
    for _ in range(4):
        queue.add(Request("a"), 6.0)
    assert queue.add(Request("a"), 6.0) == pytest.approx(2.0 * 3)  # two batches that wait, and one that runs


def test_deadlines_that_are_long_over_take_no_memory():
    queue = BatchQueue(BatcherConfig(max_batch=4))
    for n in range(10_000):
        queue.add(Request("a", deadline=n + 1e6), float(n))
        queue.finish(queue.take(float(n)).batch, float(n))
    assert len(queue._deadlines) < 100
