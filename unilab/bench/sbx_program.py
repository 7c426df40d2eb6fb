"""The other side of a comparison with SBX: a program for an interpreter that has sbx-rl. It imports nothing of unilab.

    python sbx_program.py SETTINGS_AS_JSON

It prints one line of JSON when it is ready. For each line that it reads it does one share of work, "updates" or
"train", and prints one line with its `count` and `seconds`.
"""

import json
import sys
import time
from importlib import metadata
from typing import Any


def main() -> None:
    settings = json.loads(sys.argv[1])
    out, sys.stdout = sys.stdout, sys.stderr  # whatever is printed on the way must not come between the lines
    work = {"updates": make_updates, "train": make_training}[settings["mode"]](settings)
    versions = {name: metadata.version(name) for name in ("sbx-rl", "stable-baselines3", "jax", "gymnasium")}
    print(json.dumps({"versions": versions}), file=out, flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        count = work()
        print(json.dumps({"count": count, "seconds": time.perf_counter() - start}), file=out, flush=True)


def make_updates(settings: dict[str, Any]) -> Any:
    """Gradient steps on random data; returns a function that does a share and says how many."""
    import gymnasium
    import numpy as np
    from gymnasium.spaces import Box
    from stable_baselines3.common.logger import configure
    from stable_baselines3.common.vec_env import DummyVecEnv

    class Spaces(gymnasium.Env):
        observation_space = Box(-np.inf, np.inf, (settings["obs_size"],), np.float32)
        action_space = Box(-1.0, 1.0, (settings["action_size"],), np.float32)

    model = _model(settings, DummyVecEnv([Spaces] * settings["num_envs"]))
    model._logger = configure(None, [])
    rng = np.random.default_rng(0)
    names: tuple[str, ...]
    if settings["algo"] == "ppo":
        buffer = model.rollout_buffer
        names = ("observations", "actions", "rewards", "values", "log_probs", "advantages", "returns")
        buffer.reset()
    else:
        buffer = model.replay_buffer
        names = ("observations", "next_observations", "actions", "rewards")
    for name in names:
        array = getattr(buffer, name)
        setattr(buffer, name, rng.uniform(-1.0, 1.0, array.shape).astype(np.float32))
    buffer.full = True
    updates = settings["updates"]

    def work() -> int:
        if settings["algo"] == "ppo":
            model.train()
        else:
            model.train(gradient_steps=updates, batch_size=settings["batch_size"])
        return int(updates)

    return work


def make_training(settings: dict[str, Any]) -> Any:
    """Training on Gymnasium's envs; returns a function that trains for a share of env steps and says how many."""
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    makers = [lambda: gymnasium.make(settings["task"])] * settings["num_envs"]
    envs = SubprocVecEnv(makers) if settings["vec_env"] == "subproc" else DummyVecEnv(makers)
    model = _model(settings, envs)
    model.learn(settings["warm_up_steps"] + settings["env_steps"])  # the second share is learned from, and compiles

    def work() -> int:
        before = model.num_timesteps
        model.learn(settings["env_steps"], reset_num_timesteps=False)
        return int(model.num_timesteps - before)

    return work


def _model(settings: dict[str, Any], envs: Any) -> Any:
    import sbx
    from flax import linen

    algo = {"sac": sbx.SAC, "td3": sbx.TD3, "ppo": sbx.PPO}[settings["algo"]]
    kwargs = {"net_arch": settings["hidden"], "activation_fn": getattr(linen, settings["activation"])}
    if settings["algo"] == "ppo":
        return algo(
            "MlpPolicy", envs, policy_kwargs=kwargs, n_steps=settings["rollout_steps"], n_epochs=settings["epochs"],
            batch_size=settings["batch_size"], seed=0,
        )  # fmt: skip
    return algo(
        "MlpPolicy", envs, policy_kwargs=kwargs, buffer_size=settings["replay_steps"],
        batch_size=settings["batch_size"], train_freq=settings["rollout_steps"], gradient_steps=settings["updates"],
        policy_delay=settings["policy_delay"], learning_starts=settings["warm_up_steps"], seed=0,
    )  # fmt: skip


if __name__ == "__main__":
    main()
