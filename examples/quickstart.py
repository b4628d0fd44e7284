"""Compare FedPAQ with FedAvg and QSGD on the paper's first problem: loss, bytes, modelled time.

python examples/quickstart.py [--total-steps 100]
"""

from __future__ import annotations

import argparse

import fedpaq


def main(total_steps: int) -> None:
    """Train with each of the three methods and print one line for each."""
    problem = fedpaq.problems.load("mnist-logistic", num_clients=50, seed=0)
    shape = {"total_steps": total_steps, "step_size": 0.5, "seed": 0}
    methods = {
        "FedPAQ": (fedpaq.FedPAQConfig(clients_per_round=25, local_steps=10, **shape), fedpaq.LowPrecision(levels=1)),
        "FedAvg": (fedpaq.FedPAQConfig(clients_per_round=25, local_steps=10, **shape), fedpaq.Identity()),
        "QSGD": (fedpaq.FedPAQConfig(clients_per_round=50, local_steps=1, **shape), fedpaq.LowPrecision(levels=1)),
    }
    for name, (config, quantizer) in methods.items():
        last = fedpaq.train(problem, config, quantizer=quantizer, cost_model=fedpaq.CostModel.from_ratio(100)).final
        print(f"{name:7} loss {last.loss:.4f}  {last.payload_bytes:9,} bytes  time {last.seconds:8,.0f} gradients")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=100)
    main(parser.parse_args().total_steps)
