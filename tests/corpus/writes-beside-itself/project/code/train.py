import os

here = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(here, "model.txt"), "w") as file:
    file.write("weights")
print("wrote")
