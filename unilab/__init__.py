"""Train robot policies with MuJoCo on the CPU and a JAX learner."""
