"""onnxruntime's Python interface over a session of trnrt.

``table``      each name of onnxruntime's interface, and its meaning here; the page in docs/ is made from it
``ignoring``   the one warning for a name that means nothing here
``options``    SessionOptions and RunOptions
``enums``      the constants that they take
``values``     OrtValue, and the records of devices and memory
``binding``    IOBinding
``providers``  the names of execution providers, and the backends behind them
``profile``    the file that ``end_profiling`` writes
``metadata``   ModelMetadata
``session``    the methods of onnxruntime's session that need only ``run`` and the model
``notebook``   a session in a notebook
``module``     the functions of onnxruntime's module
``refused``    names that refuse any use, with the reason

``trnrt`` exports them, so that ``import trnrt as ort`` suits a script for onnxruntime.
"""
