"""What a training step would take on clusters that are not here, and which mesh of devices is predicted to be fastest."""

import tensorlogic as tl

LAYERS, WIDTH, ROWS = 12, 4096, 1 << 16

b = tl.GraphBuilder()
h = b.input("x", ("n", WIDTH), "float32")
names = [f"w{n}" for n in range(LAYERS)]
for name in names:
    h = b.relu(h @ b.input(name, (WIDTH, WIDTH), "float32"))
step = tl.value_and_grad(b.build(loss=b.mean(b.square(h))), wrt=names)

cluster = tl.Cluster(
    flops=60e12,
    memory_bandwidth=1.5e12,
    bandwidth=200e9,
    latency=5e-6,
    memory=40 << 30,
    devices_per_machine=8,
    network_bandwidth=12e9,
    network_latency=20e-6,
)
for count in (8, 16):
    print(f"{count} devices")
    auto = tl.DistributedParallelismStrategy.Auto(micro_batch_size=ROWS // 16)
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(count)], strategy=auto)
    print(tl.simulate(step, config, cluster, sizes={"n": ROWS}))
