import onnx
import tensorflow as tf

print(tf, onnx)
