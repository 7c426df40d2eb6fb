"""A third party's learner on these envs: Stable-Baselines3, or SBX, which is Stable-Baselines3 in JAX.

`pip install 'unilab[sb3]'`, then `python examples/sb3_vec_env.py`. The adapter below is all that their interface needs:
it splits a step in two and hands out one info per env.
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

import unilab  # noqa: F401 - registers the envs


class SB3VecEnv(VecEnv):
    """One of our vector envs as Stable-Baselines3 wants it. It must restart its envs in the same step.

    Args:
        envs: made by `gym.make_vec(..., autoreset_mode="SAME_STEP")`.
    """

    def __init__(self, envs: gym.vector.VectorEnv) -> None:
        if envs.metadata["autoreset_mode"] is not gym.vector.AutoresetMode.SAME_STEP:
            raise ValueError(f"autoreset_mode is {envs.metadata['autoreset_mode'].name}; allowed: SAME_STEP")
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        seeds, self._seeds = list(self._seeds), [None] * self.num_envs
        obs, _ = self.envs.reset(seed=seeds if any(seed is not None for seed in seeds) else None)
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> Any:
        obs, reward, terminated, truncated, infos = self.envs.step(self._actions)
        ended: np.ndarray = terminated | truncated
        each: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for env in np.flatnonzero(ended):
            final = {"terminal_observation": infos["final_obs"][env]}
            each[env] = {**final, "TimeLimit.truncated": bool(truncated[env] and not terminated[env])}
        return obs, reward.astype(np.float32), ended, each

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the envs of a vector env have no attributes of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the envs of a vector env have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(list(self._get_indices(indices)))


def make(name: str, num_envs: int, num_workers: int = 0, **keywords: Any) -> VecMonitor:
    """A vector env for Stable-Baselines3, which records returns and lengths of episodes."""
    envs = gym.make_vec(name, num_envs, autoreset_mode="SAME_STEP", num_workers=num_workers, **keywords)
    return VecMonitor(SB3VecEnv(envs))


def main(env_steps: int = 200_000) -> None:
    from sbx import PPO
    from stable_baselines3.common.evaluation import evaluate_policy

    envs = make("unilab/CartpoleSwingup-v0", num_envs=64, num_workers=2)
    learner = PPO("MlpPolicy", envs, n_steps=64, batch_size=512, learning_rate=1e-3, ent_coef=0.005, gamma=0.98, seed=0)
    before, _ = evaluate_policy(learner, envs, 64)
    learner.learn(env_steps)
    after, _ = evaluate_policy(learner, envs, 64)
    print(f"mean return of 64 episodes: {before:.0f} before, {after:.0f} after {env_steps} env steps")
    envs.close()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
