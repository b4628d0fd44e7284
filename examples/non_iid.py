"""How uneven data changes the best number of local steps.

The paper assumes that the data of all clients comes from one distribution. This example divides MNIST's 0
and 8 in three ways: evenly, by a Dirichlet law, and with one digit per client. It trains each with few and
with many local steps.

    python examples/non_iid.py [--total-steps 100]
"""

from __future__ import annotations

import argparse

import fedpaq

PARTITIONS = {
    "iid": {"partition": "iid"},
    "dirichlet 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "one label per client": {"partition": "by-label", "labels_per_client": 1},
}


def main(total_steps: int) -> None:
    """Print the final loss for each partition and number of local steps."""
    steps = [tau for tau in (1, 5, 20) if total_steps % tau == 0]
    print(f"{'final loss':22}" + "".join(f"tau={tau:<8}" for tau in steps))
    for name, options in PARTITIONS.items():
        problem = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0, **options)
        losses = []
        for tau in steps:
            config = fedpaq.FedPAQConfig(clients_per_round=10, local_steps=tau, total_steps=total_steps, step_size=0.2)
            losses.append(fedpaq.train(problem, config, quantizer=fedpaq.LowPrecision(levels=4)).final.loss)
        print(f"{name:22}" + "".join(f"{loss:<12.4f}" for loss in losses))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=100)
    main(parser.parse_args().total_steps)
