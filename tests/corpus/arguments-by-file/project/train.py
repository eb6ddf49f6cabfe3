import argparse

import yaml

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
with open(parser.parse_args().config) as file:
    print("width", yaml.safe_load(file)["width"])
