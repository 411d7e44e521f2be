"""Shared memory that one block may use, by the name that the driver gives the card.

Limits are those of the compute capability: CUDA C++ programming guide, technical specifications.
"""

from __future__ import annotations

_BYTES_PER_KIB = 1024
_KIB: dict[int, tuple[str, ...]] = {
    # 9.0 and 10.0
    227: (
        "NVIDIA B200",
        "NVIDIA GB200",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 NVL",
        "NVIDIA H100 PCIe",
        "NVIDIA H20",
        "NVIDIA H20-3e",
        "NVIDIA H200",
        "NVIDIA H200 NVL",
        "NVIDIA H800",
    ),
    # 8.0
    163: ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A800"),
    # 8.6, 8.9 and 12.0
    99: (
        "NVIDIA A10",
        "NVIDIA GeForce RTX 4090",
        "NVIDIA GeForce RTX 5090",
        "NVIDIA L20",
        "NVIDIA L4",
        "NVIDIA L40S",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    ),
}
SHARED_MEMORY: dict[str, int] = {
    device: kib * _BYTES_PER_KIB for kib, devices in _KIB.items() for device in devices
}
"""Bytes by device name."""
