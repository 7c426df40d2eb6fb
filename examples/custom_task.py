"""A task of one's own in one file: a drone on a rail that hovers at a wanted height.

Run it as `python examples/custom_task.py`, or as `unilab train examples/custom_task.py:Hover`. No
`if __name__ == "__main__"` is needed: workers get the task itself, they do not import this file.
`unilab.envs.checker.check_task(Hover())` is a test of the task.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import mujoco

import unilab

XML = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <light pos="0 -2 3" dir="0 1 -1"/>
    <geom type="plane" size="2 2 0.1" contype="0" conaffinity="0"/>
    <body name="drone" pos="0 0 1">
      <joint name="height" type="slide" axis="0 0 1" damping="0.1"/>
      <geom type="box" size="0.2 0.2 0.03" mass="1" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor name="thrust" joint="height" gear="5" ctrlrange="-1 1"/></actuator>
</mujoco>
"""


@dataclass(frozen=True)
class Hover(unilab.Task):
    """Hover at a height that is drawn for each episode; thrust adds to 1 g."""

    control_dt: float = 0.02
    episode_s: float = 4.0
    rewards: dict[str, float] = field(default_factory=lambda: {"near": 1.0, "effort": -0.05})

    fields = ("qpos", "qvel")
    train_defaults = {"ppo": {"steps": 200_000, "num_envs": 64, "algo.rollout_steps": 32}}

    def model(self, fine=False):
        spec = mujoco.MjSpec.from_string(XML)
        spec.option.gravity = [0, 0, 0]  # the thrust that carries the weight is left out
        return spec

    def reset(self, key, curriculum, randomised):
        wanted = jax.random.uniform(key, minval=-0.5, maxval=0.5)
        return jnp.zeros(1), jnp.zeros(1), {"wanted": wanted}

    def advance(self, state, physics, action, key, curriculum):
        error = physics.qpos[0] - state["wanted"]
        terms = {"near": jnp.exp(-jnp.square(error / 0.1)), "effort": jnp.square(action[0])}
        return state, terms, jnp.abs(physics.qpos[0]) > 1.0, {"height_error": jnp.abs(error)}

    def observe(self, state, physics, key):
        return {"actor": jnp.stack([state["wanted"] - physics.qpos[0], physics.qvel[0]])}


result = unilab.train(unilab.make_config(Hover(), workers=2))
print(result.evaluation)
