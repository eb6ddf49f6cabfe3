"""Which package goes into which layer of an image, and the program that makes a layer's bytes depend on them alone."""
