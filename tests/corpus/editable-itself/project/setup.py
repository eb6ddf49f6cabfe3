from setuptools import find_packages, setup

setup(name="lab", version="1", packages=find_packages(), install_requires=["tabulate"])
