"""Export of a model as ONNX or OpenVINO graphs with a model card, and upload to the model hub."""
