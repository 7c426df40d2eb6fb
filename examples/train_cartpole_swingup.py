"""Train a pole to swing up, watch the numbers, and use the policy."""

import numpy as np

import unilab

config = unilab.make_config("CartpoleSwingup", seed=0)
result = unilab.train(config, display=unilab.make_display())
print(f"return {result.evaluation['return_mean']:.0f} of at most 1000, run folder {result.run}")

policy = unilab.load_policy(result.run)
hanging_still = np.array([0.0, -1.0, 0.0, 0.0, 0.0])  # position, cos and sin of the angle, velocities
print("force on the cart at the start:", policy(hanging_still))
