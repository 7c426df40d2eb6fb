"""Gymnasium's MuJoCo suite, version 5, from the models that the gymnasium package ships."""
