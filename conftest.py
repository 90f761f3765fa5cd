"""Settings for all tests and doctests, before torch is imported, and the library itself.

pytest would load the first file of src/ that it collects twice, if the library were not imported here.
"""

import os

# Some machines name AMX among their CPU's instructions and forbid its use: a product in bfloat16 then dies
# with "Illegal instruction". Without AMX the tests run there, and compute the same everywhere.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

# One thread for each of several processes: more would wait for each other.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import bitbayes.laplace  # noqa: F401 (and with it almost every other module)
