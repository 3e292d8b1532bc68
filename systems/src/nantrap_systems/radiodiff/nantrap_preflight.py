"""The first step of this system, which `nantrap diagnose` of this folder tests."""

from nantrap_systems.radiodiff.train import SYSTEM

make = SYSTEM.first_step
