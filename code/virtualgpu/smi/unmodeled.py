"""Name the fields of --query-gpu that exist on real GPUs, and that virtual GPUs do not model.

Monitoring programs ask for many of them, and can handle "[N/A]", which many real GPUs answer, too.
"""

from __future__ import annotations

from itertools import product

_REASONS = ("supported", "active", "gpu_idle", "applications_clocks_setting", "sw_power_cap",
            "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown",
            "sync_boost")
_MEMORIES = ("device_memory", "dram", "register_file", "l1_cache", "l2_cache", "texture_memory",
             "cbu", "sram", "total")
_CLOCKS = ("graphics", "sm", "memory", "video")

# The fields by unit. Aliases are in query.py.
BY_UNIT = {
    "": (
        "serial", "vbios_version", "persistence_mode", "mig.mode.current", "mig.mode.pending",
        "pstate", "temperature.gpu", "temperature.gpu.tlimit", "temperature.memory",
        *(f"pcie.link.gen.{what}" for what in ("current", "gpucurrent", "max", "gpumax",
                                               "hostmax")),
        "pcie.link.width.current", "pcie.link.width.max", "pci.device_id", "pci.sub_device_id",
        "display_mode", "display_active", "addressing_mode", "accounting.mode",
        "accounting.buffer_size", "driver_model.current", "driver_model.pending",
        "inforom.img", "inforom.oem", "inforom.ecc", "inforom.pwr", "gom.current", "gom.pending",
        "power.management", "ecc.mode.current", "ecc.mode.pending",
        *(f"ecc.errors.{kind}.{since}.{memory}" for kind, since, memory in product(
            ("corrected", "uncorrected"), ("volatile", "aggregate"), _MEMORIES)),
        "retired_pages.single_bit_ecc.count", "retired_pages.double_bit.count",
        "retired_pages.pending", *(f"clocks_event_reasons.{reason}" for reason in _REASONS),
        "encoder.stats.sessionCount", "encoder.stats.averageFps", "encoder.stats.averageLatency",
        "gsp.mode.current", "gsp.mode.default", "fabric.state", "fabric.status"),
    "%": ("utilization.memory", "utilization.encoder", "utilization.decoder", "utilization.jpeg",
          "utilization.ofa", "fan.speed"),
    "W": ("power.draw", "power.draw.average", "power.draw.instant", "power.limit",
          "enforced.power.limit", "power.default_limit", "power.min_limit", "power.max_limit"),
    "MHz": (
        *(f"clocks.{which}.{clock}" for which, clock in product(("current", "max"), _CLOCKS)
          if (which, clock) != ("max", "video")),
        *(f"clocks.{which}.{clock}" for which, clock in product(
            ("applications", "default_applications"), ("graphics", "memory")))),
    "MiB": ("memory.reserved",),
}
FIELDS = tuple((name, unit) for unit, names in BY_UNIT.items() for name in names)
# Older names of the same fields.
ALIASES = {f"clocks_throttle_reasons.{reason}": f"clocks_event_reasons.{reason}"
           for reason in _REASONS} | {
    "gpu_serial": "serial", "clocks.gr": "clocks.current.graphics", "clocks.sm":
    "clocks.current.sm", "clocks.mem": "clocks.current.memory", "clocks.video":
    "clocks.current.video", "clocks.max.gr": "clocks.max.graphics", "clocks.max.mem":
    "clocks.max.memory", "clocks.applications.gr": "clocks.applications.graphics",
    "clocks.applications.mem": "clocks.applications.memory", "clocks.default_applications.gr":
    "clocks.default_applications.graphics", "clocks.default_applications.mem":
    "clocks.default_applications.memory",
    "retired_pages.sbe": "retired_pages.single_bit_ecc.count",
    "retired_pages.dbe": "retired_pages.double_bit.count"}
