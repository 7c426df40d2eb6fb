"""Tasks as Gymnasium environments."""
