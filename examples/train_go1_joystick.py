"""Train a Unitree Go1 to follow velocity commands, then check it on physics that it was not trained on."""

import unilab

config = unilab.make_config("Go1JoystickFlat", seed=0)
result = unilab.train(config, display=unilab.make_display())

for fine in (False, True):
    figures = unilab.evaluate(result.run, episodes=256, fine=fine)
    print(
        f"{'fine' if fine else 'training'} physics: {100 * figures['fall_rate']:.1f} % fall, velocity error "
        f"{figures['lin_vel_error']:.3f} m/s, yaw rate error {figures['ang_vel_error']:.3f} rad/s"
    )
print(f"next: unilab video {result.run}")
