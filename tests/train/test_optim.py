"""Optimizers beside the same formulas in plain NumPy, float64."""

import pickle

import numpy as np
import pytest
from by_hand import EVERY, RATE, adamw
from problems import gradients, regression, regression_data, regression_params

import tensorlogic as tl

STEPS = 7


@pytest.mark.parametrize(("by_hand", "policy"), [*((f, "exact") for f in EVERY), (adamw, "fast")])
def test_as_by_hand(by_hand, policy):
    data, params = regression_data(dtype="float64"), regression_params("float64")
    config = tl.TrainerConfig(
        optimizer=getattr(tl.optim, by_hand.__name__)(RATE), epochs=STEPS, batch_size=40, shuffle=False
    )
    trainer = tl.Trainer(tl.Executor(policy=policy), config)
    trainer.fit(regression("float64"), params, data)
    kept = {name: {} for name in params}
    for t in range(1, STEPS + 1):
        slopes = gradients(params, data)
        params = {name: by_hand(w, slopes[name], kept[name], t) for name, w in params.items()}
    for name, w in params.items():
        np.testing.assert_allclose(trainer.params[name], w, rtol=1e-6)  # the rate is a float32


def test_one_of_the_users_own():
    def signs(b, w, gradient, state, rate, t):
        total = state["total"] + b.absolute(gradient)
        return w - rate * b.sign(gradient), {"total": total}

    optimizer = tl.optim.custom(signs, 0.25, slots=("total",), name="signs")
    trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=optimizer, epochs=3, batch_size=40))
    trainer.fit(regression(), regression_params(), regression_data())
    moved = (trainer.params["w"] - regression_params()["w"]) / 0.25
    np.testing.assert_allclose(moved, np.rint(moved), atol=1e-5)
    assert (trainer.values["optimizer.total.w"] > 0).all()


def test_an_update_that_returns_something_else():
    bad = tl.optim.custom(lambda b, w, g, s, rate, t: w, 0.1, name="bad")
    with pytest.raises(tl.InputError, match="the update of bad returns the next parameter and a mapping"):
        tl.Trainer(None, tl.TrainerConfig(optimizer=bad)).fit(regression(), regression_params(), regression_data())
    with pytest.raises(tl.InputError, match="six arguments"):
        tl.optim.custom(lambda w, g: w, 0.1)


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), "fast", True])
def test_rates_that_are_none(rate):
    with pytest.raises(tl.InputError, match="learning rate is a number above 0"):
        tl.optim.sgd(rate)


def test_schedules():
    o = tl.optim
    assert [o.step_decay(1.0, every=2, factor=0.5)(n) for n in range(5)] == [1, 1, 0.5, 0.5, 0.25]
    assert o.cosine(2.0, steps=10, end=1.0)(5) == pytest.approx(1.5)
    assert o.cosine(2.0, steps=10, end=1.0)(50) == 1.0
    cycle = o.one_cycle(1.0, steps=10)
    rates = [cycle(n) for n in range(11)]
    assert rates.index(max(rates)) == 3 and rates[0] == pytest.approx(0.04) and rates[-1] == pytest.approx(4e-6)
    assert o.warmup(o.step_decay(1.0, every=1, factor=0.5), steps=2)(3) == 0.5
    with pytest.raises(tl.InputError, match="steps is a whole number from 1"):
        o.cosine(0.1, steps=0)


def test_the_rate_follows_its_schedule():
    config = tl.TrainerConfig(
        optimizer=tl.optim.sgd(tl.optim.step_decay(0.1, every=2, factor=0.1)), epochs=4, batch_size=40
    )
    history = tl.Trainer(None, config).fit(regression(), regression_params(), regression_data())
    np.testing.assert_allclose(history["rate"], [0.1, 0.01, 0.01, 0.001])  # after an epoch, that of the next step


def test_a_plateau_lowers_the_rate():
    config = tl.TrainerConfig(
        optimizer=tl.optim.sgd(tl.optim.plateau(1e-12, factor=0.5, patience=1)), epochs=8, batch_size=40
    )
    trainer = tl.Trainer(None, config)
    trainer.fit(regression(), regression_params(), regression_data())
    assert trainer.rate() < 1e-12
    lost = tl.TrainerConfig(optimizer=tl.optim.sgd(tl.optim.plateau(0.1, watch="validation_loss")), epochs=1)
    with pytest.raises(tl.InputError, match="no figure 'validation_loss'"):
        tl.Trainer(None, lost).fit(regression(), regression_params(), regression_data())


@pytest.mark.parametrize("name", sorted(tl.optim.OPTIMIZERS))
def test_json_and_back(name):
    made = tl.optim.OPTIMIZERS[name](tl.optim.warmup(tl.optim.cosine(0.1, steps=9), steps=3))
    again = tl.optim.from_json(tl.optim.to_json(made))
    assert again == made and again.rate(5) == made.rate(5)


RATES = {
    "constant": tl.optim.constant(0.1),
    "step_decay": tl.optim.step_decay(0.1, every=3),
    "cosine": tl.optim.cosine(0.1, steps=9),
    "warmup": tl.optim.warmup(tl.optim.cosine(0.1, steps=9), steps=3),
    "one_cycle": tl.optim.one_cycle(0.1, steps=9),
    "plateau": tl.optim.plateau(0.1),
}


@pytest.mark.parametrize("name", sorted(tl.optim.SCHEDULES))
def test_schedules_can_be_pickled(name):
    again = pickle.loads(pickle.dumps(RATES[name]))
    assert again == RATES[name]
    if name != "plateau":
        assert [again(n) for n in range(12)] == [RATES[name](n) for n in range(12)]


@pytest.mark.parametrize("name", sorted(tl.optim.OPTIMIZERS))
def test_optimizers_can_be_pickled(name):
    made = tl.optim.OPTIMIZERS[name](RATES["warmup"])
    again = pickle.loads(pickle.dumps(made))
    assert again == made
    steps = []
    for each in (made, again):
        b = tl.GraphBuilder()
        w, g, rate, t = b.input("w", (3,), "float32"), b.input("g", (3,), "float32"), b.literal(0.1), b.literal(1)
        after, kept = each.update(b, w, g, {slot: b.input(slot, (3,), "float32") for slot in each.slots}, rate, t)
        steps.append(b.build(w=after, **{f"next_{slot}": value for slot, value in kept.items()}))
    assert steps[0] == steps[1]
