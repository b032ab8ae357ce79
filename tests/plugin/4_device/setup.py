"""Builds the back end: a library of torch operators, without a Python module."""

from __future__ import annotations

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    ext_modules=[
        CppExtension("allmetal_acme._acme", ["csrc/acme.cpp"], extra_compile_args=["-O1", "-g0"])
    ],
    cmdclass={"build_ext": BuildExtension.with_options(use_ninja=False)},
)
