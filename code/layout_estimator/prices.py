"""What an hour of a card costs, as a cloud lists it.

Amazon EC2, on demand, us-east-1, Linux, in the first half of 2025, per GPU of the instance named:
for orders of magnitude, since prices change and nobody pays the list's for months of a cluster.
--price-per-gpu-hour takes yours.
"""

from __future__ import annotations

DOLLARS_PER_HOUR = {
    "v100-sxm2-16gb": 24.48 / 8,  # p3.16xlarge
    "v100-32gb": 31.212 / 8,  # p3dn.24xlarge
    "a100-40gb": 32.7726 / 8,  # p4d.24xlarge
    "a100-80gb": 40.9657 / 8,  # p4de.24xlarge
    "h100-80gb": 98.32 / 8,  # p5.48xlarge
    "a10": 16.288 / 8,  # g5.48xlarge (A10G)
    "t4": 0.526,  # g4dn.xlarge
    "l4": 0.8048,  # g6.xlarge
}
