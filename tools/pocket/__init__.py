"""How the embedded pocket stream is made: a maintainer's tool, see ../build_pocket.py."""
