"""Devices by name, also ones that are absent, to plan for them."""

from collections.abc import Callable, Mapping

from amprewrite.errors import UnsupportedError
from amprewrite.plan.hardware.calibration import Device, cache_folder, read_calibration


def measured_devices(framework: str) -> list[Device]:
    """Return the devices that ``amprewrite calibrate`` measured for a framework.

    Unreadable files are skipped.
    """
    found: list[Device] = []
    for file in sorted(cache_folder().glob(f"{framework}-*.json")):
        try:
            calibration = read_calibration(file.read_text("utf-8"))
        except (OSError, ValueError):  # a wrong encoding is a ValueError
            continue
        found.append(calibration.device)
    return found


def named_device(
    name: str,
    framework: str,
    version: str,
    kinds: Mapping[str, str],
    present: Callable[[str], Device | None],
) -> Device:
    """Return the device called ``name``.

    For a kind: the present device of that kind, else the only measured one, else a
    device of which only the kind is known.

    Args:
        name: A kind (``cuda``), or the name of a measured device (``NVIDIA H100``).
        framework: ``torch`` or ``jax``.
        version: Version of the framework.
        kinds: The framework's kinds by the names that users give them.
        present: Returns the device of a kind; None if there is none.

    Raises:
        UnsupportedError: There is no such kind, and no measured device of that name.
    """
    measured = measured_devices(framework)
    kind = kinds.get(name.lower().partition(":")[0])
    if kind is not None:
        here = present(kind)
        same = [device for device in measured if device.kind == kind]
        unknown = Device(framework=framework, version=version, kind=kind, name=kind)
        return here or (same[0] if len(same) == 1 else unknown)
    wanted = [device for device in measured if device.name.lower() == name.lower()]
    if wanted:
        return min(wanted, key=lambda device: device.version != version)
    names = ", ".join(sorted({repr(device.name) for device in measured})) or "none"
    msg = (
        f"unknown device {name!r}; want {', '.join(kinds)}, or the name of a device "
        f"that `amprewrite calibrate` measured for {framework}; on file: {names}"
    )
    raise UnsupportedError(msg)
