# THE list of ops, one stem per line. The build, the tests and tests/python/test_architecture.py
# read it: a stem names a file in every layer.
set(MEMBOUND_OPS rms_norm)
