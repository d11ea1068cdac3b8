"""Fetch CIFAR-100, or check what is here.

python data_scripts/cifar100.py [--root DIR] [--subset N] [--check]
"""

import sys

from unrolled.data.command import script

if __name__ == "__main__":
    sys.exit(script("cifar100"))
