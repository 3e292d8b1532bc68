"""The first step of this system, which `nantrap diagnose` of this folder tests."""

from nantrap_systems.restran_mhc.train import SYSTEM

make = SYSTEM.first_step
