import cv2
import numpy

print(cv2.flip(numpy.zeros((2, 2, 3)), 0).shape)
