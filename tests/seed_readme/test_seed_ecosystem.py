"""The crates around the seed's own, as its README shows them: training and the logic compiler."""

import numpy as np

import tensorlogic as tl


def test_trainer(executor):
    config = tl.TrainerConfig()
    trainer = tl.Trainer(executor, config)
    assert trainer.executor is executor
    assert trainer.config == config


def test_compile(executor):
    x, y, z = tl.variables("x y z", domain="Person")
    expr = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
    context = tl.CompilerContext(domains={"Person": ["alice", "bob", "carol"]})
    graph = tl.compile(expr, context, strategy="hard_boolean")
    assert isinstance(graph, tl.EinsumGraph)

    sister = np.array([[0, 1, 0], [0, 0, 0], [0, 1, 0]], dtype=bool)
    parent = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 0]], dtype=bool)
    outputs = executor.execute(graph, {"sister": sister, "parent": parent})
    np.testing.assert_array_equal(outputs["result"], (sister[:, :, None] & parent[None]).any(axis=1))
