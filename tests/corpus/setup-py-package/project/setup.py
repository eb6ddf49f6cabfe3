from setuptools import setup

setup(name="tinyGPT", version="0.0.1", packages=["tinygpt"], install_requires=["torch"])
